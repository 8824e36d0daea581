#include "titan/estimate/memory_settings.h"

#include <algorithm>
#include <limits>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/job/pipeline_job.h"

namespace titan {
namespace {

/// A plan does not include temporaries of a backward within a block, nor allocator overhead. A GPU's allocator was seen
/// to use up to 4 % more than planned (mock_gpu_memory_test); processes on a CPU use more.
int64_t planned_within(int64_t bytes, bool on_gpu) {
  return static_cast<int64_t>(static_cast<double>(bytes) / (on_gpu ? 1.1 : 1.5));
}

/// Bytes of a step and of a validation: predicted, or allowed.
struct Peaks {
  int64_t training = 0;
  int64_t validation = 0;
  int64_t forward = 0;  // of validation: the forward of one batch

  int64_t of(const std::optional<Phase>& phase) const {
    if (!phase) return std::max(training, validation);
    return *phase == Phase::training ? training : validation;
  }
};

/// Throws Error for an invalid job.
Peaks predict(const JobConfig& config, const MeshPlace& place, const MemoryQuestion& question) {
  const ModelDescription model = describe_model(config, question.vocabulary);
  for (const std::vector<Problem>& problems :
       {check_degrees(&model, config, {}), check_gradient_dtype(config, {}, place.mesh)}) {
    if (!problems.empty()) throw Error(ExitCode::bad_config, problems[0].what);
  }
  PlanRequest request = make_plan_request(config, place, question.device_only);
  add_pipeline(request, config, model);
  request.training.loss_chunks =
      choose_loss_chunks(config, model, place.mesh, question.device_only ? question.allowed : std::nullopt);
  const Plan plan = make_plan(model, request);
  return {plan.training_bytes(question.device_only), plan.validation_bytes(question.device_only),
          request.validation.enable ? plan.validation_memory.back().bytes : 0};
}

class Search {
 public:
  Search(const MemoryQuestion& question, size_t most)
      : question_(question), most_(most), config_(question.config), now_(predict(config_, question.place, question)) {
    // −1 stands for "the rest": a ladder that doubles the degree needs the number.
    config_.parallelism.data_parallel_shard_degree = question.place.mesh.size(MeshAxis::dp_shard);
    const bool training_fits = !question.allowed || now_.training <= *question.allowed;
    is_validation_ =
        question.ran_out ? *question.ran_out == Phase::validation : now_.validation > now_.training && training_fits;
    const int64_t within = question.allowed ? planned_within(*question.allowed, question.device_only) : 0;
    // If the job ran out although its plan fits, the plan is too low by an unknown amount. A setting whose plan fits is
    // then not enough: it must also be a fifth below the plan of the job as it is.
    const int64_t taken = is_validation_ ? now_.validation : now_.of(question.ran_out);
    const int64_t room = !question.allowed            ? fifth_less(taken)
                         : taken <= *question.allowed ? std::min(within, fifth_less(taken))
                                                      : within;
    room_ = {is_validation_ ? std::max(within, now_.training) : room, room};
    // If the bytes held before a batch are known, only the batch must fit beside them.
    const int64_t rest = question.held > 0 && question.allowed
                             ? planned_within(*question.allowed - question.held, question.device_only)
                             : 0;
    room_.forward = std::min(rest, fifth_less(now_.forward));
  }

  std::vector<MemorySetting> run() {
    if (is_validation_) {
      for (const MemoryLadder& ladder : validation_ladders(config_)) climb(ladder, Of::validation);
      if (found_.empty()) climb(smallest_validations(config_), Of::validation);
      if (!found_.empty()) return found_;
    }
    for (const MemoryLadder& ladder : training_ladders(config_, question_.device_only)) climb(ladder, Of::training);
    return found_;
  }

 private:
  enum class Of { training, validation };

  static int64_t fifth_less(int64_t bytes) { return static_cast<int64_t>(0.8 * static_cast<double>(bytes)); }

  bool fits(const Peaks& peaks, Of changed) const {
    const bool beside_what_is_held = changed == Of::validation && peaks.forward <= room_.forward;
    return peaks.training <= room_.training && (peaks.validation <= room_.validation || beside_what_is_held);
  }

  /// None: the job is invalid, for example a batch that the pipeline cannot split.
  std::optional<Peaks> peaks_of(const MemoryTrial& trial) const {
    try {
      const MeshPlace place{make_mesh(trial.config, question_.place.mesh.world() * trial.times_ranks),
                            question_.place.rank};
      return predict(trial.config, place, question_);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  /// Takes the first change that fits, alone or with a smaller validation.
  void climb(const MemoryLadder& ladder, Of changed) {
    if (found_.size() == most_) return;
    for (const MemoryChange& change : ladder) {
      MemoryTrial trial{config_, {}};
      change(trial);
      if (trial.words.empty()) continue;
      if (take(trial, changed) || (changed == Of::training && take_with_less_validation(trial))) return;
    }
  }

  bool take(const MemoryTrial& trial, Of changed) {
    const std::optional<Peaks> peaks = peaks_of(trial);
    if (!peaks || !fits(*peaks, changed)) return false;
    const MemorySetting setting{join(trial.words, " with "), peaks->of(question_.ran_out), trial.config,
                                trial.times_ranks};
    const bool saves_nothing = std::any_of(found_.begin(), found_.end(), [&](const MemorySetting& found) {
      return setting.words.starts_with(found.words + " with ") && setting.bytes >= found.bytes;
    });
    if (!saves_nothing) found_.push_back(setting);
    return true;
  }

  bool take_with_less_validation(const MemoryTrial& trial) {
    if (!config_.validation.enable) return false;
    std::vector<MemoryLadder> ladders = validation_ladders(config_);
    ladders.push_back(smallest_validations(config_));
    const auto with = [&](const MemoryChange& change) {
      MemoryTrial both = trial;
      change(both);
      return both;
    };
    const std::optional<Peaks> least = peaks_of(with(ladders.back().back()));
    if (!least || !fits(*least, Of::training)) return false;
    for (const MemoryLadder& ladder : ladders) {
      for (const MemoryChange& change : ladder) {
        if (take(with(change), Of::training)) return true;
      }
    }
    return false;
  }

  const MemoryQuestion& question_;
  size_t most_;
  JobConfig config_;
  Peaks now_;
  bool is_validation_ = false;  // validation takes too much, training does not
  Peaks room_;
  std::vector<MemorySetting> found_;
};

/// The logits' block is the largest of a step. While it is free, an allocator cuts it up for what lives longer, and the
/// next logits need another one: the head counts twice.
int64_t held_bytes(const Plan& plan) {
  const UnitPlan& last = plan.units.back();
  return plan.predicted_bytes(/*device_only=*/true) + (last.is_models_last ? last.forward_peak : 0);
}

/// True if the plan of each pipeline stage, with so many parts, fits into `room` bytes of a GPU.
bool fits_in_chunks(int64_t chunks, const JobConfig& config, const ModelDescription& model, const DeviceMesh& mesh,
                    int64_t room) {
  const MeshAxis along[] = {MeshAxis::pp};
  const std::vector<int64_t> stages = mesh.members(0, along);
  return std::all_of(stages.begin(), stages.end(), [&](int64_t rank) {
    PlanRequest request = make_plan_request(config, {mesh, rank}, /*on_gpu=*/true);
    add_pipeline(request, config, model);
    request.training.loss_chunks = chunks;
    return held_bytes(make_plan(model, request)) <= planned_within(room, /*on_gpu=*/true);
  });
}

}  // namespace

int64_t choose_loss_chunks(const JobConfig& config, const ModelDescription& model, const DeviceMesh& mesh,
                           const std::optional<int64_t>& room) {
  if (config.training.loss_chunks > 0) return config.training.loss_chunks;
  if (!room) return kUsualLossChunks;
  int64_t tokens = make_plan_request(config, {mesh, 0}).tokens();
  const ValidationSection& validation = config.validation;
  if (validation.enable) {
    tokens = std::max(tokens, validation.local_batch_size * validation.seq_len / mesh.size(MeshAxis::cp));
  }
  for (int64_t chunks = 1; chunks < kUsualLossChunks; chunks *= 2) {
    // Libraries count the numbers of a matrix in 32 bits here and there, and larger products are no faster.
    const int64_t logits = (tokens + chunks - 1) / chunks * model.vocabulary;
    if (logits <= std::numeric_limits<int32_t>::max() && fits_in_chunks(chunks, config, model, mesh, *room)) {
      return chunks;
    }
  }
  return kUsualLossChunks;
}

int64_t predicted_bytes(const MemoryQuestion& question) {
  return predict(question.config, question.place, question).of(question.ran_out);
}

std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most) {
  return Search(question, most).run();
}

}  // namespace titan
