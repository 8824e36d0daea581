#include "titan/report/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "titan/base/text.h"
#include "titan/report/step_report.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

// Faster changes cannot be read, and each is a write that a slow terminal makes the training wait for.
constexpr std::chrono::milliseconds kPause{100};

struct Field {
  int importance;
  std::string text;
};

std::string joined(const std::vector<Field>& fields) {
  std::vector<std::string> texts;
  for (const Field& field : fields) texts.push_back(field.text);
  return join(texts, "  ");
}

size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string status_line(const StepReport& r, size_t width) {
  const double percent = 100.0 * static_cast<double>(r.step) / static_cast<double>(std::max<int64_t>(1, r.total_steps));
  std::vector<Field> fields{
      {9, fmt::format("step {}/{} {:.1f}%", with_thousands(r.step), with_thousands(r.total_steps), percent)},
      {8, fmt::format("loss {:.4f}", r.loss)},
      {5, fmt::format("tok/s {}", with_thousands(std::llround(r.tokens_per_second)))}};
  if (r.peak_flops) fields.push_back({4, fmt::format("mfu {:.1f}%", 100 * utilisation(r))});
  fields.push_back({3, fmt::format("mem {:.1f}/{:.1f}G", static_cast<double>(r.memory_bytes) / kGiB,
                                   static_cast<double>(r.memory_total) / kGiB)});
  fields.push_back({2, fmt::format("data {:.1f}ms", 1e3 * r.data_wait_seconds)});
  fields.push_back({7, fmt::format("eta {}", human_duration(r.eta_seconds))});
  const auto less = [](const Field& a, const Field& b) { return a.importance < b.importance; };
  while (fields.size() > 1 && joined(fields).size() > width) {
    fields.erase(std::min_element(fields.begin(), fields.end(), less));
  }
  return joined(fields).substr(0, width);
}

bool StatusDisplay::is_due() const { return log_.shows_status() && Clock::now() - shown_ >= kPause; }

// Keep the last column free, because some terminals wrap as soon as it is written, and two more for the "^C" that
// Ctrl-C prints.
void StatusDisplay::show(const StepReport& report) {
  shown_ = Clock::now();
  log_.status(status_line(report, std::max<size_t>(terminal_width(), 4) - 3));
}

}  // namespace titan
