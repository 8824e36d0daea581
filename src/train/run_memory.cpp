#include "run_memory.h"

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/job/job.h"
#include "titan/train/run.h"

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

/// The largest of the ranks' numbers. Collective.
int64_t most_of_ranks(const Run& run, int64_t own) {
  const World& world = run.world;
  if (!world.store || !world.is_distributed()) return own;
  const std::chrono::seconds timeout(run.config.comm.init_timeout_seconds);
  const std::unique_ptr<RankBarrier> barrier =
      make_store_barrier(world.store->clone(), "loss_chunks", world.rank, world.size,
                         {.timeout = timeout, .response_timeout = timeout, .waits = world.waits, .report = {}});
  const std::string agreed = barrier->decide(std::to_string(own), [](const std::vector<std::string>& said) {
    int64_t most = 1;
    for (size_t rank = 0; rank < said.size(); ++rank) {
      read_words(said[rank], rank, [&](const nlohmann::json& words) { most = std::max(most, words.get<int64_t>()); });
    }
    return std::to_string(std::min(most, kUsualLossChunks));
  });
  int64_t most = own;
  read_words(agreed, 0, [&](const nlohmann::json& words) { most = words.get<int64_t>(); });
  return most;
}

}  // namespace

RunMemory::RunMemory(const Run& run)
    : run_(run),
      config_(run.config),
      room_(memory_room(run.device, std::ssize(run.world.host_ranks), run.config.debug.share_gpu)) {
  if (run.device.device.is_cpu()) bytes_before_ = resident_bytes();
}

MemoryQuestion RunMemory::question(std::optional<Phase> ran_out) const {
  return {config_,
          run_.place,
          run_.model.description.vocabulary,
          !run_.device.device.is_cpu(),
          room_.bytes,
          ran_out,
          held_before_validation_};
}

void RunMemory::begin_validation() {
  phase_ = Phase::validation;
  if (!run_.device.device.is_cpu()) held_before_validation_ = peak_memory_bytes(run_.device.device);
}

std::string RunMemory::position(int64_t step) const {
  std::vector<std::string> words;
  if (phase_ == Phase::validation) words.emplace_back("validation");
  if (const std::string unit = run_.model.assembly.executor->position(); !unit.empty()) words.push_back(unit);
  words.push_back(phase_ == Phase::validation ? fmt::format("after step {}", step) : fmt::format("step {}", step + 1));
  return join(words, ", ");
}

int64_t RunMemory::settle_loss_chunks() {
  int64_t& chunks = config_.training.loss_chunks;
  if (chunks > 0) return chunks;
  const bool on_cpu = run_.device.device.is_cpu();
  chunks = most_of_ranks(run_, choose_loss_chunks(config_, run_.model.description, run_.place.mesh,
                                                  on_cpu ? std::optional<int64_t>() : room_.bytes));
  run_.log.info("training.loss_chunks = 0: logits are computed in {} part{}{}", chunks, chunks == 1 ? "" : "s",
                on_cpu ? ", as always on a CPU" : "");
  return chunks;
}

void RunMemory::check(const Plan& plan) const {
  const MemoryQuestion question = this->question();
  const int64_t planned = plan.predicted_bytes(question.device_only);
  if (run_.world.fake || !room_.bytes || planned <= *room_.bytes) return;
  const std::vector<MemorySetting> settings = settings_that_fit(question);
  const bool trains_in_it = plan.training_bytes(question.device_only) == planned;
  run_.log.warning("the plan takes {} on this rank{}, and this machine's {}; it would fit with {}", gibibytes(planned),
                   trains_in_it ? "" : " in validation", room_.words,
                   settings.empty() ? "no setting known here" : listed(settings));
}

// Not with a shared GPU: the tensors of the other ranks would count as other processes' memory.
void RunMemory::compare_libraries() const {
  if (run_.device.device.is_cpu() || run_.config.debug.share_gpu || run_.world.fake) return;
  const auto& peer_memory = run_.model.assembly.peer_memory;
  const int64_t shared = peer_memory ? peer_memory->capacity() : 0;  // planned, but outside the allocator
  const int64_t taken = bytes_beside_allocator(run_.device.device) - shared;
  const std::string words = fmt::format("libraries and other processes use {} of GPU memory; the plan reserves {}",
                                        gibibytes(taken), gibibytes(kLibraryBytes));
  if (taken <= kLibraryBytes) return run_.log.info("After the first step {}", words);
  run_.log.warning("after the first step {}: a plan that just fits may run out of memory", words);
}

bool RunMemory::is_short() const { return room_.bytes && predicted_bytes(question(phase_)) * 3 / 2 > *room_.bytes; }

std::vector<MemoryRow> RunMemory::rows(int64_t peak_bytes) const {
  const Assembly& assembly = run_.model.assembly;
  const Plan& plan = run_.model.plan();
  MeasuredMemory measured;
  measured.before_bytes = bytes_before_;
  measured.peak_bytes = peak_bytes;
  measured.device_only = !run_.device.device.is_cpu();
  if (run_.model.optimizer) measured.optimizer_bytes = run_.model.optimizer->state_bytes();
  if (assembly.activation_offload) measured.host_activation_bytes = assembly.activation_offload->host().peak_bytes();
  if (assembly.slots) {
    measured.weight_slot_bytes = assembly.slots->weight_bytes();
    measured.gradient_slot_bytes = assembly.slots->gradient_bytes();
  }
  const bool gradients_stay =
      std::all_of(plan.groups.begin(), plan.groups.end(), [](const WeightGroupPlan& group) { return group.gathers; });
  if (!run_.config.optimizer.early_step_in_backward || gradients_stay) {
    measured.gradient_bytes = assembly.executor->gradient_bytes();
  }
  return memory_rows(phase_ == Phase::validation ? plan.validation_memory : plan.memory, assembly.parameters, measured);
}

void RunMemory::watch(const std::function<std::string()>& position, const std::function<void()>& work) const {
  std::optional<std::string> words;
  try {
    return work();
  } catch (...) {
    words = out_of_memory_words(std::current_exception());
    if (!words) {
      words = vague_words(std::current_exception());
      if (words && !is_short()) words.reset();
    }
    if (!words) throw;
  }
  const std::string there = position();
  if (run_.model.assembly.executor) {
    run_.log.info("memory by purpose, when it ran out in {}:", there);
    for (const std::string& line : comparison_table(rows(peak_memory_bytes(run_.device.device)))) run_.log.info(line);
  }
  const MemoryQuestion question = this->question(phase_);
  const std::vector<MemorySetting> settings = settings_that_fit(question);
  throw Error(ExitCode::out_of_memory,
              fmt::format("out of memory{} in {}; the plan takes {} on this rank; {}",
                          words->empty() ? "" : " (" + *words + ")", there, gibibytes(predicted_bytes(question)),
                          settings.empty() ? no_setting_words(room_) : "it would fit with: " + listed(settings)));
}

}  // namespace titan
