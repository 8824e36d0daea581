// The trainer's words on memory: a warning when the plan takes more than there is, and a report when it runs out.
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

std::string gibibytes(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// "a (1.2 GiB) | b (0.9 GiB)".
std::string listed(const std::vector<MemorySetting>& settings) {
  std::vector<std::string> words;
  for (const MemorySetting& setting : settings) {
    words.push_back(fmt::format("{} ({})", setting.words, gibibytes(setting.bytes)));
  }
  return join(words, " | ");
}

std::string no_setting_words(const MemoryRoom& room) {
  if (room.bytes != 0) return "no setting known here would fit: a smaller model or a larger machine would";
  return fmt::format("no setting known here would fit: this machine's {}; a larger one would do", room.words);
}

}  // namespace

MemoryQuestion Trainer::memory_question(std::optional<RunPhase> ran_out) const {
  return {config_, place_, description_.vocabulary, !device_.device.is_cpu(), room_.bytes, ran_out, held_};
}

std::string Trainer::where() const {
  std::vector<std::string> words;
  if (phase_ == RunPhase::validation) words.emplace_back("validation");
  if (const std::string unit = assembly_.executor->position(); !unit.empty()) words.push_back(unit);
  words.push_back(phase_ == RunPhase::validation ? fmt::format("after step {}", position_.step)
                                                 : fmt::format("step {}", position_.step + 1));
  return join(words, ", ");
}

void Trainer::check_memory(const Plan& plan) const {
  const MemoryQuestion question = memory_question();
  const int64_t planned = plan.predicted_bytes(question.device_only);
  if (world_.fake || !room_.bytes || planned <= *room_.bytes) return;
  const std::vector<MemorySetting> settings = settings_that_fit(question);
  const bool trains_in_it = plan.training_bytes(question.device_only) == planned;
  log_.warning("the plan takes {} on this rank{}, and this machine's {}; it would fit with {}", gibibytes(planned),
               trains_in_it ? "" : " in validation", room_.words,
               settings.empty() ? "no setting known here" : listed(settings));
}

// Of a GPU that ranks share each sees what the others' tensors take.
void Trainer::compare_libraries() const {
  if (device_.device.is_cpu() || config_.debug.share_gpu || world_.fake) return;
  const int64_t shared = assembly_.peer_memory ? assembly_.peer_memory->capacity() : 0;  // planned, by no allocator
  const int64_t taken = bytes_beside_allocator(device_.device) - shared;
  const std::string words = fmt::format(
      "libraries and other processes take {} of the GPU beside this rank's tensors, "
      "and {} are set aside for them",
      gibibytes(taken), gibibytes(kLibraryBytes));
  if (taken <= kLibraryBytes) return log_.info("After the first step {}", words);
  log_.warning("after the first step {}: a plan that just fits may run out of memory", words);
}

// A half more than the plan: what libraries take for a product is no part of it.
bool Trainer::lacks_memory() const {
  return room_.bytes && predicted_bytes(memory_question(phase_)) * 3 / 2 > *room_.bytes;
}

void Trainer::with_memory_report(const std::function<std::string()>& what, const std::function<void()>& work) const {
  std::optional<std::string> words;
  try {
    return work();
  } catch (...) {
    words = out_of_memory_words(std::current_exception());
    if (!words) {
      words = vague_words(std::current_exception());
      if (words && !lacks_memory()) words.reset();
    }
    if (!words) throw;
  }
  const std::string there = what();
  if (assembly_.executor) {
    log_.info("memory by purpose, when it ran out in {}:", there);
    for (const std::string& line : comparison_table(memory_now(peak_memory_bytes(device_.device)))) log_.info(line);
  }
  const MemoryQuestion question = memory_question(phase_);
  const std::vector<MemorySetting> settings = settings_that_fit(question);
  throw Error(ExitCode::out_of_memory,
              fmt::format("out of memory{} in {}; the plan takes {} on this rank; {}",
                          words->empty() ? "" : " (" + *words + ")", there, gibibytes(predicted_bytes(question)),
                          settings.empty() ? no_setting_words(room_) : "it would fit with: " + listed(settings)));
}

}  // namespace titan
