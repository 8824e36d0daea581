// The changes of a job that reduce its memory, in the order of their cost.
#include "titan/estimate/memory_settings.h"
#include "titan/job/job.h"

namespace titan {
namespace {

using Ladder = MemoryLadder;
using Trial = MemoryTrial;

constexpr int64_t kShortest = 128;  // tokens: a setting that fits only with less is of no use

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
  const ElementType narrow = ElementType::bfloat16;
  trial.set("optimizer.state_dtype", trial.config.optimizer.state_dtype, narrow, "\"bfloat16\"");
}

void narrow_weights(Trial& trial) {
  const ElementType narrow = ElementType::bfloat16;
  trial.set("training.dtype", trial.config.training.dtype, narrow, "\"bfloat16\"");
}

/// On a CPU it would save memory of which there is more, and cost casts.
void narrow_gradients(Trial& trial) {
  const ElementType narrow = ElementType::bfloat16;
  trial.set("training.gradient_dtype", trial.config.training.gradient_dtype, narrow, "\"bfloat16\"");
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
  // Within a host: every layer waits for these collectives, and a network is slower than NVLink.
  constexpr int64_t kMost = 8;
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
    int64_t& chunks = trial.config.training.loss_chunks;
    trial.set("training.loss_chunks", chunks, 4 * (chunks > 0 ? chunks : kUsualLossChunks));
  }});
  all.push_back(replicas(config));
  if (config.activation_checkpoint.mode == "none") {
    all.push_back({[](Trial& trial) { recompute(trial, "selective", "norm,swiglu"); }});
  }
  if (other_memory) all.push_back({narrow_gradients});
  all.push_back(batches(config));
  all.push_back({[](Trial& trial) { recompute(trial, "full", ""); }});
  all.push_back({narrow_states});
  if (other_memory) {
    all.push_back({[](Trial& trial) { trial.set("optimizer.offload", trial.config.optimizer.offload, true, "true"); }});
    all.push_back({[](Trial& trial) { recompute(trial, "full", ""), narrow_gradients(trial); }});
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
