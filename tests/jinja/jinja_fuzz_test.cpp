// The interpreter of strangers' chat templates under AddressSanitizer and UndefinedBehaviorSanitizer (cmake/Tests.cmake
// builds it for this test alone): templates made from its grammar end with a text or an error, within a second of
// processor time and 100 MB.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>

#include "random_template.h"
#include "src/text/chat_jinja.h"

// Of sanitizer/allocator_interface.h, which not every installation of GCC has.
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                              void (*free_hook)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void* at);
}

namespace titan {
namespace {

constexpr double kMostSeconds = 1;
constexpr int64_t kMostBytes = 100'000'000;
constexpr size_t kFormsPerTemplate = 14;

int64_t live_bytes = 0, peak_live_bytes = 0;

void note_malloc(const volatile void*, size_t size) {
  live_bytes += static_cast<int64_t>(size);
  peak_live_bytes = std::max(peak_live_bytes, live_bytes);
}
void note_free(const volatile void* at) {
  if (at) live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(at));
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Returns whether it ran to its end.
bool run(const std::string& source) {
  const std::vector<ChatMessage> messages{{"user", "What is \"12\" × 3?\n"}, {"assistant", "36 🦊"}};
  try {
    const jinja::Template parsed(source);
    const jinja::Rendered rendered = parsed.write(messages, false, {{"bos_token", "<s>"}});
    EXPECT_LE(rendered.output.spans.empty() ? 0 : rendered.output.spans.back().end, rendered.output.text.size());
    return true;
  } catch (const jinja::TemplateError& error) {
    EXPECT_STRNE(error.what(), "") << source;
    return false;
  }
}

TEST(JinjaFuzz, TemplatesOfTheGrammarEndInTimeAndMemory) {
  static const int hooked = __sanitizer_install_malloc_and_free_hooks(note_malloc, note_free);
  ASSERT_NE(hooked, 0);
  const size_t count = std::getenv("TITAN_TEST_FULL") ? 1'000'000 : 20'000;
  std::vector<size_t> runs(test::kForms.size());
  size_t ended = 0;
  for (size_t i = 0; i < count; ++i) {
    const test::RandomTemplate made(i, i * kFormsPerTemplate, kFormsPerTemplate);
    bool ends = false;
    double seconds = kMostSeconds;
    // Other programs that share the caches slow this one down: what was slow is measured again.
    for (int tries = 0; tries < 5 && seconds >= kMostSeconds; ++tries) {
      live_bytes = peak_live_bytes = 0;
      const double before = thread_seconds();
      ends = run(made.source());
      seconds = thread_seconds() - before;
    }
    ASSERT_LT(seconds, kMostSeconds) << made.source();
    ASSERT_LT(peak_live_bytes, kMostBytes) << made.source();
    if (!ends) continue;
    ++ended;
    for (size_t j = 0; j < kFormsPerTemplate; ++j) ++runs[(i * kFormsPerTemplate + j) % runs.size()];
  }
  EXPECT_GT(2 * ended, count);
  for (size_t i = 0; i < runs.size(); ++i) EXPECT_GE(runs[i], 1000u) << test::kForms[i].source;
}

}  // namespace
}  // namespace titan
