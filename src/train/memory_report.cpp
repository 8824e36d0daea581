#include "titan/train/memory_report.h"

#include <c10/util/Exception.h>
#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <system_error>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/train/job.h"
#include "titan/train/pipeline_job.h"
#include "titan/train/world_problems.h"

namespace titan {
namespace {

constexpr const char* kRest = "activations and the rest";
constexpr const char* kBefore = "process and libraries";

std::string size_words(const std::string& message) {
  const size_t sentence = std::min(message.find("you tried to allocate"), message.find("Tried to allocate"));
  if (sentence == std::string::npos) return {};
  return message.substr(sentence, message.find(". ", sentence) - sentence);
}

std::map<std::string, int64_t> found_bytes(std::span<Parameter* const> parameters, const MeasuredMemory& measured) {
  int64_t masters = 0, copies = 0;
  for (const Parameter* parameter : parameters) {
    masters += static_cast<int64_t>(parameter->master.nbytes());
    const bool own_copy = !parameter->compute_copy.is_alias_of(parameter->master);
    copies += own_copy ? static_cast<int64_t>(parameter->compute_copy.nbytes()) : 0;
    if (parameter->float8_copy.defined()) copies += static_cast<int64_t>(parameter->float8_copy.nbytes());
  }
  std::map<std::string, int64_t> found{{"parameters", masters},
                                       {"parameters, compute copy", copies},
                                       {"gathered weights", measured.weight_slot_bytes},
                                       {"gradients before reduction", measured.gradient_slot_bytes},
                                       {"optimizer state", measured.optimizer_bytes},
                                       {"activations on the host", measured.host_activation_bytes}};
  if (measured.gradient_bytes) found["gradients"] = *measured.gradient_bytes;
  return found;
}

}  // namespace

std::vector<MemoryRow> memory_rows(std::span<const MemoryPurpose> planned, std::span<Parameter* const> parameters,
                                   const MeasuredMemory& measured) {
  std::map<std::string, int64_t> found = found_bytes(parameters, measured);
  std::vector<MemoryRow> rows;
  if (measured.before_bytes > 0) rows.push_back({kBefore, 0, measured.before_bytes});
  int64_t rest = 0, known = measured.before_bytes;
  for (const MemoryPurpose& purpose : planned) {
    if (measured.device_only && purpose.on_host) {
      found.erase(purpose.name);
      continue;
    }
    const auto actual = found.find(purpose.name);
    if (actual == found.end()) {
      rest += purpose.bytes;
      continue;
    }
    rows.push_back({purpose.name, purpose.bytes, actual->second});
    known += actual->second;
    found.erase(actual);
  }
  for (const auto& [name, bytes] : found) {
    if (bytes == 0) continue;
    rows.push_back({name, 0, bytes});
    known += bytes;
  }
  rows.push_back({kRest, rest, std::max(measured.peak_bytes - known, int64_t{0})});
  return rows;
}

std::vector<std::string> comparison_table(std::span<const MemoryRow> rows) {
  const auto line = [](const std::string& purpose, const std::string& planned, const std::string& actual) {
    return fmt::format("  {:<26} {:>12} {:>12}", purpose, planned, actual);
  };
  std::vector<std::string> lines{line("", "planned", "actual")};
  int64_t planned = 0, actual = 0;
  for (const MemoryRow& row : rows) {
    planned += row.planned;
    actual += row.actual;
    lines.push_back(line(row.purpose, row.purpose == kBefore ? "" : human_bytes(static_cast<double>(row.planned)),
                         human_bytes(static_cast<double>(row.actual))));
  }
  lines.push_back(
      line("together", human_bytes(static_cast<double>(planned)), human_bytes(static_cast<double>(actual))));
  return lines;
}

std::optional<std::string> out_of_memory_words(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "";
  } catch (const std::system_error& refused) {
    if (refused.code() == std::errc::not_enough_memory) return "";
  } catch (const c10::DistError& communication) {
    // NCCL's message follows LibTorch's first line.
    if (reports_out_of_memory(communication.what_without_backtrace())) return "while ranks communicated";
  } catch (const c10::Error& internal) {
    const std::string message = internal.what_without_backtrace();
    const std::string first_line = message.substr(0, message.find('\n'));
    if (reports_out_of_memory(first_line)) return size_words(first_line);
  } catch (const Error&) {
  } catch (const std::exception& other) {
    if (reports_out_of_memory(other.what())) return "";
  } catch (...) {
  }
  return std::nullopt;
}

std::optional<std::string> vague_words(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    const std::string message = failure.what();
    for (const char* vague : {"could not execute a primitive", "could not create a primitive"}) {
      if (message.find(vague) != std::string::npos) return vague;
    }
  } catch (...) {
  }
  return std::nullopt;
}

// Finds settings that make a job fit: makes the plan again with each, in the order of their cost.

namespace {

/// A plan does not include temporaries of a backward within a block, nor allocator overhead. A GPU's allocator was seen
/// to use up to 4 % more than planned (mock_gpu_test); processes on a CPU use more.
int64_t planned_within(int64_t bytes, bool on_gpu) {
  return static_cast<int64_t>(static_cast<double>(bytes) / (on_gpu ? 1.1 : 1.5));
}

/// Bytes of a step and of a validation: predicted, or allowed.
struct Peaks {
  int64_t training = 0;
  int64_t validation = 0;
  int64_t forward = 0;  // of validation: the forward of one batch

  int64_t of(const std::optional<RunPhase>& phase) const {
    if (!phase) return std::max(training, validation);
    return *phase == RunPhase::training ? training : validation;
  }
};

/// Throws Error for an invalid job.
Peaks predict(const JobConfig& config, const MeshPlace& place, const MemoryQuestion& question) {
  const ModelFamily& family = *find_model_family(config.model.name);
  const ModelDescription model = describe_model(config, question.vocabulary);
  const std::vector<Problem> problems = check_degrees(&model, config, {});
  if (!problems.empty()) throw Error(ExitCode::bad_config, problems[0].what);
  PlanRequest request = make_plan_request(config, place, question.device_only);
  add_pipeline(request, config, model);
  const Plan plan = make_plan(model, family, request);
  return {plan.training_bytes(question.device_only), plan.validation_bytes(question.device_only),
          request.validation ? plan.validation_memory.back().bytes : 0};
}

class Search {
 public:
  Search(const MemoryQuestion& question, size_t most)
      : question_(question), most_(most), config_(question.config), now_(predict(config_, question.place, question)) {
    // Resolve -1, so that the degree can be increased.
    config_.parallelism.data_parallel_shard_degree = question.place.mesh.size(MeshAxis::dp_shard);
    const bool training_fits = !question.allowed || now_.training <= *question.allowed;
    is_validation_ =
        question.ran_out ? *question.ran_out == RunPhase::validation : now_.validation > now_.training && training_fits;
    const int64_t within = question.allowed ? planned_within(*question.allowed, question.device_only) : 0;
    // A job that fits by its plan and ran out needs more than that: require a fifth less than now, too.
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

}  // namespace

int64_t predicted_bytes(const MemoryQuestion& question) {
  return predict(question.config, question.place, question).of(question.ran_out);
}

std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most) {
  return Search(question, most).run();
}

namespace {

using Ladder = MemoryLadder;
using Trial = MemoryTrial;

constexpr int64_t kShortest = 128;  // tokens of a sequence

void recompute(Trial& trial, const std::string& mode, const std::string& option) {
  ActivationCheckpointSection& section = trial.config.activation_checkpoint;
  trial.set("activation_checkpoint.mode", section.mode, mode, "\"" + mode + "\"");
  if (mode != "selective") return;
  trial.set("activation_checkpoint.selective_ac_option", section.selective_ac_option, option, "\"" + option + "\"");
}

void batch(Trial& trial, int64_t size) {
  trial.set("training.local_batch_size", trial.config.training.local_batch_size, size);
}

void narrow_states(Trial& trial) {
  const std::string narrow = "bfloat16";
  trial.set("optimizer.state_dtype", trial.config.optimizer.state_dtype, narrow, "\"bfloat16\"");
}

void narrow_weights(Trial& trial) {
  const std::string narrow = "bfloat16";
  trial.set("training.dtype", trial.config.training.dtype, narrow, "\"bfloat16\"");
}

/// Smaller values in descending order: halved above 16, then every value.
std::vector<int64_t> smaller(int64_t value) {
  std::vector<int64_t> values;
  for (int64_t v = value; v > 1;) {
    v = v > 16 ? v / 2 : v - 1;
    values.push_back(v);
  }
  return values;
}

std::vector<int64_t> shorter(int64_t length) {
  std::vector<int64_t> lengths;
  for (int64_t half = length / 2; half >= kShortest; half /= 2) lengths.push_back(half);
  return lengths;
}

Ladder batches(const JobConfig& config) {
  Ladder ladder;
  for (const int64_t size : smaller(config.training.local_batch_size)) {
    ladder.push_back([size](Trial& trial) { batch(trial, size); });
  }
  return ladder;
}

Ladder lengths(const JobConfig& config) {
  Ladder ladder;
  for (const int64_t length : shorter(config.training.seq_len)) {
    ladder.push_back([length](Trial& trial) { trial.set("training.seq_len", trial.config.training.seq_len, length); });
  }
  return ladder;
}

// Other layouts for the same number of ranks.

/// Fewer replicas (HSDP) that shard the weights over more ranks.
Ladder replicas(const JobConfig& config) {
  Ladder ladder;
  const int64_t now = config.parallelism.data_parallel_replicate_degree;
  for (int64_t times = 2; times <= now; ++times) {
    if (now % times != 0) continue;
    ladder.push_back([now, times](Trial& trial) {
      ParallelismSection& section = trial.config.parallelism;
      trial.set("parallelism.data_parallel_replicate_degree", section.data_parallel_replicate_degree, now / times);
      trial.set("parallelism.data_parallel_shard_degree", section.data_parallel_shard_degree,
                section.data_parallel_shard_degree * times);
    });
  }
  return ladder;
}

Ladder tensor_parallel(const JobConfig& config) {
  constexpr int64_t kMost = 8;  // within a host
  Ladder ladder;
  const ParallelismSection& now = config.parallelism;
  for (int64_t times = 2; now.tensor_parallel_degree * times <= kMost; times *= 2) {
    if (now.data_parallel_shard_degree % times != 0) break;
    ladder.push_back([times](Trial& trial) {
      ParallelismSection& section = trial.config.parallelism;
      trial.set("parallelism.tensor_parallel_degree", section.tensor_parallel_degree,
                section.tensor_parallel_degree * times);
      trial.set("parallelism.data_parallel_shard_degree", section.data_parallel_shard_degree,
                section.data_parallel_shard_degree / times);
    });
  }
  return ladder;
}

void validation_batch(Trial& trial, int64_t size) {
  trial.set("validation.local_batch_size", trial.config.validation.local_batch_size, size);
}

void validation_length(Trial& trial, int64_t length) {
  trial.set("validation.seq_len", trial.config.validation.seq_len, length);
}

}  // namespace

std::vector<MemoryLadder> training_ladders(const JobConfig& config, bool other_memory) {
  std::vector<Ladder> all;
  all.push_back({[](Trial& trial) {
    trial.set("training.loss_chunks", trial.config.training.loss_chunks, 4 * trial.config.training.loss_chunks);
  }});
  all.push_back(replicas(config));
  if (config.activation_checkpoint.mode == "none") {
    all.push_back({[](Trial& trial) { recompute(trial, "selective", "norm,swiglu"); }});
  }
  all.push_back(batches(config));
  all.push_back({[](Trial& trial) { recompute(trial, "full", ""); }});
  all.push_back({narrow_states});
  if (other_memory) {
    all.push_back({[](Trial& trial) { trial.set("optimizer.offload", trial.config.optimizer.offload, true, "true"); }});
    all.push_back({[](Trial& trial) {
      recompute(trial, "full", "");
      trial.set("activation_checkpoint.offload", trial.config.activation_checkpoint.offload, true, "true");
    }});
  }
  all.push_back({narrow_weights});
  all.push_back({[](Trial& trial) { narrow_states(trial), narrow_weights(trial); }});
  all.push_back(tensor_parallel(config));
  if (other_memory) {
    all.push_back({[](Trial& trial) {
      trial.set("training.enable_cpu_offload", trial.config.training.enable_cpu_offload, true, "true");
    }});
  }
  Ladder ranks;
  for (const int64_t times : {2, 4, 8}) {
    ranks.push_back([times](Trial& trial) {
      ParallelismSection& section = trial.config.parallelism;
      const int64_t degree = section.data_parallel_shard_degree * times;
      trial.times_ranks = times;
      trial.set("parallelism.data_parallel_shard_degree", section.data_parallel_shard_degree, degree,
                fmt::format("{} on {} times as many processes", degree, times));
    });
  }
  all.push_back(std::move(ranks));
  all.push_back(lengths(config));
  all.push_back({[](Trial& trial) { recompute(trial, "full", ""), batch(trial, 1); }});
  all.push_back({[](Trial& trial) {
    recompute(trial, "full", ""), batch(trial, 1), narrow_states(trial), narrow_weights(trial);
  }});
  return all;
}

std::vector<MemoryLadder> validation_ladders(const JobConfig& config) {
  std::vector<Ladder> all(2);
  for (const int64_t size : smaller(config.validation.local_batch_size)) {
    all[0].push_back([size](Trial& trial) { validation_batch(trial, size); });
  }
  for (const int64_t length : shorter(config.validation.seq_len)) {
    all[1].push_back([length](Trial& trial) { validation_length(trial, length); });
  }
  return all;
}

MemoryLadder smallest_validations(const JobConfig& config) {
  Ladder ladder{[](Trial& trial) { validation_batch(trial, 1); }};
  for (const int64_t length : shorter(config.validation.seq_len)) {
    ladder.push_back([length](Trial& trial) { validation_batch(trial, 1), validation_length(trial, length); });
  }
  return ladder;
}

}  // namespace titan
