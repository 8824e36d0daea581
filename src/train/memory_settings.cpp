// Which settings would make a job fit: the plan is made again with each, in the order of what they cost.
#include <algorithm>
#include <functional>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/train/job.h"
#include "titan/train/memory_report.h"
#include "titan/train/pipeline_job.h"

namespace titan {
namespace {

/// Plans are of what is kept: what a backward makes and drops within a block, and what allocators lose, is not in them.
/// A GPU's allocator was seen to take up to 4 % more than planned (mock_gpu_test); processes on a CPU lose more.
int64_t planned_within(int64_t bytes, bool on_gpu) {
  return static_cast<int64_t>(static_cast<double>(bytes) / (on_gpu ? 1.1 : 1.5));
}

int64_t predict(const JobConfig& config, const MeshPlace& place, int64_t vocabulary, bool device_only) {
  const ModelFamily& family = *find_model_family(config.model.name);
  const ModelDescription model = family.describe(make_model_request(config, vocabulary));
  PlanRequest request = make_plan_request(config, place);
  add_pipeline(request, config, model);
  return make_plan(model, family, request).predicted_bytes(device_only);
}

/// A job with some settings changed.
struct Trial {
  JobConfig config;
  std::vector<std::string> words;
  int64_t times_ranks = 1;  // so many times the processes

  template <class T>
  Trial& set(const char* key, T& field, const T& value, const std::string& shown) {
    if (field != value) words.push_back(fmt::format("{} = {}", key, shown));
    field = value;
    return *this;
  }
  Trial& recompute(const std::string& mode, const std::string& option) {
    ActivationCheckpointSection& section = config.activation_checkpoint;
    set("activation_checkpoint.mode", section.mode, mode, "\"" + mode + "\"");
    if (mode == "selective") {
      set("activation_checkpoint.selective_ac_option", section.selective_ac_option, option, "\"" + option + "\"");
    }
    return *this;
  }
  Trial& batch(int64_t size) {
    return set("training.local_batch_size", config.training.local_batch_size, size, std::to_string(size));
  }
  Trial& narrow_states() {
    const std::string narrow = "bfloat16";
    return set("optimizer.state_dtype", config.optimizer.state_dtype, narrow, "\"bfloat16\"");
  }
  Trial& narrow_weights() {
    const std::string narrow = "bfloat16";
    return set("training.dtype", config.training.dtype, narrow, "\"bfloat16\"");
  }
};

/// One of several sizes of a setting: the first that fits counts.
using Ladder = std::vector<std::function<void(Trial&)>>;

/// Smaller values, the largest first: all below 16, powers of two of it above.
std::vector<int64_t> smaller(int64_t value) {
  std::vector<int64_t> values;
  for (int64_t v = value; v > 1;) {
    v = v > 16 ? v / 2 : v - 1;
    values.push_back(v);
  }
  return values;
}

Ladder batches(const JobConfig& config) {
  Ladder ladder;
  for (const int64_t size : smaller(config.training.local_batch_size)) {
    ladder.push_back([size](Trial& trial) { trial.batch(size); });
  }
  return ladder;
}

Ladder lengths(const JobConfig& config) {
  Ladder ladder;
  for (int64_t length = config.training.seq_len / 2; length >= 128; length /= 2) {
    ladder.push_back([length](Trial& trial) {
      trial.set("training.seq_len", trial.config.training.seq_len, length, std::to_string(length));
    });
  }
  return ladder;
}

/// What costs least comes first: nothing but the loss's speed, then recomputing what is cheap, smaller batches,
/// recomputing all, narrower numbers, waiting for the host, more machines, other data.
std::vector<Ladder> ladders(const JobConfig& config, bool device_only) {
  std::vector<Ladder> all;
  all.push_back({[](Trial& trial) {
    const int64_t chunks = 4 * trial.config.training.loss_chunks;
    trial.set("training.loss_chunks", trial.config.training.loss_chunks, chunks, std::to_string(chunks));
  }});
  if (config.activation_checkpoint.mode == "none") {
    all.push_back({[](Trial& trial) { trial.recompute("selective", "norm,swiglu"); }});
  }
  all.push_back(batches(config));
  all.push_back({[](Trial& trial) { trial.recompute("full", ""); }});
  all.push_back({[](Trial& trial) { trial.narrow_states(); }});
  if (device_only) {
    all.push_back({[](Trial& trial) { trial.set("optimizer.offload", trial.config.optimizer.offload, true, "true"); }});
    all.push_back({[](Trial& trial) {
      trial.recompute("full", "")
          .set("activation_checkpoint.offload", trial.config.activation_checkpoint.offload, true, "true");
    }});
  }
  all.push_back({[](Trial& trial) { trial.narrow_states().narrow_weights(); }});
  if (device_only) {
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
  all.push_back({[](Trial& trial) { trial.recompute("full", "").batch(1); }});
  all.push_back({[](Trial& trial) { trial.recompute("full", "").batch(1).narrow_states().narrow_weights(); }});
  return all;
}

}  // namespace

int64_t predicted_bytes(const MemoryQuestion& question) {
  return predict(question.config, question.place, question.vocabulary, question.device_only);
}

std::vector<MemorySetting> settings_that_fit(const MemoryQuestion& question, size_t most) {
  JobConfig config = question.config;
  // What -1 stood for, so that it can be made larger.
  config.parallelism.data_parallel_shard_degree = question.place.mesh.size(MeshAxis::dp_shard);
  const int64_t now = predicted_bytes(question);
  // A job that was planned to fit and did not needs more than the plan says: leave it a fifth of what it takes.
  const auto fifth_less = static_cast<int64_t>(0.8 * static_cast<double>(now));
  const int64_t allowed =
      question.allowed ? std::min(planned_within(*question.allowed, question.device_only), fifth_less) : fifth_less;
  std::vector<MemorySetting> found;
  for (const Ladder& ladder : ladders(config, question.device_only)) {
    for (const auto& change : ladder) {
      if (found.size() == most) return found;
      Trial trial{config, {}};
      change(trial);
      if (trial.words.empty()) continue;
      try {
        const MeshPlace place{make_mesh(trial.config, question.place.mesh.world() * trial.times_ranks),
                              question.place.rank};
        const int64_t bytes = predict(trial.config, place, question.vocabulary, question.device_only);
        if (bytes > allowed) continue;
        found.push_back({join(trial.words, " with "), bytes});
        break;
      } catch (const Error&) {  // a batch that the pipeline cannot cut, a length that ranks cannot share: no help
        continue;
      }
    }
  }
  return found;
}

}  // namespace titan
