// Several ranks as threads of a test: each has its own world, communicators, model and optimizer, and runs
// whole steps on its share of a batch that all could draw alone.
#pragma once

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/replayed_work.h"
#include "support/tensors.h"
#include "titan/optimize/optimizer.h"
#include "titan/parallel/assembly.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/step_runner.h"

namespace titan {

/// One row of layouts.tsv.
struct LayoutRow {
  int64_t replicate = 1, shard = 1, context = 1, tensor = 1;
  std::string layout = "single";
  int64_t accumulation = 1;
  bool unequal_masks = false;
  std::string reshard = "default";
  bool offload = false;
  std::string recompute = "none";
  bool tied = false;
  bool async_tensor = false;
  bool sockets = false;  // between ranks, in place of the memory they share
  ElementType compute = ElementType::float32;
  ElementType reduce = ElementType::float32;
  ElementType master = ElementType::float32, state = ElementType::float32;
  uint64_t rounding_seed = 0;
  bool host_activations = false, host_moments = false;
  std::vector<std::string> keep_fp32;
  std::optional<Float8Request> float8;
  std::string frozen;  // expression of the names of parameters that are not trained; empty: all are
  bool loss_parallel = true;
  double max_norm = 1.0;
  bool step_in_backward = false;  // gradients are gone when the step is over, and are not handed out
  bool graphs = false;            // blocks are recorded and replayed
  bool fused = false;             // the fused kernels, compiled for the host
  Rotation rotation = Rotation::all_gather;
  LoadBalance balance = LoadBalance::head_tail;
  bool documents = false;     // several in every sample, which do not see each other
  int64_t length = 64;        // of a sample
  int64_t global_batch = 16;  // samples of a step; every layout's ranks and microbatches divide it
  ModelRequest::Sizes sizes{
      .dim = 64, .n_layers = 4, .n_heads = 8, .n_kv_heads = 4, .multiple_of = 16, .vocab_size = 203};

  int64_t pipeline = 1;           // ranks of it
  std::string schedule = "1F1B";  // a name, or the text of a CSV file
  int64_t stages_per_rank = 1;
  int64_t microbatches = 4;  // of the pipeline, in each accumulated microbatch

  int64_t world() const { return pipeline * replicate * shard * context * tensor; }
  std::string name() const;
};

std::vector<LayoutRow> layout_rows();

/// What one rank saw; gradients are whole, from step 1.
struct RankResult {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> stop_requests;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;    // whole, after the last step
  std::vector<std::string> strays;              // parameters whose gradient here is not that part of the whole one
  std::map<std::string, TrafficTable> traffic;  // of one later step, by communicator
  std::vector<std::string> reported;            // by check_traffic, of that step
  Plan plan;
  int64_t to_device_bytes = 0, to_host_bytes = 0;  // of that step
  int64_t device_peak = 0, host_peak = 0;          // of weights that live on the host
  int64_t activation_bytes = 0, moment_bytes = 0;  // that crossed in that step, each way
  int64_t most_live = 0;                           // of a pipeline
  int64_t gradient_bytes = 0;                      // after the last step
  ReplayCounts replays;                            // of recorded graphs
};

/// What happens in a run: ways to break it, for tests of the tests, and a request to stop.
struct Fault {
  std::optional<int64_t> stopping_rank;  // requests it in step 2
  /// May put others in the place of the groups that were made; what those did is counted.
  std::function<void(int64_t rank, MeshGroups& groups)> groups;
  std::function<void(int64_t rank, Parameter& parameter)> reduced_gradient;
};

/// The plan of one of the row's ranks.
Plan plan_of(const LayoutRow& row, int64_t rank);

/// Trains the row's model for `steps` steps on all ranks of the row; the results by rank.
std::vector<RankResult> train_ranks(const LayoutRow& row, int64_t steps, const Fault& fault = {});

}  // namespace titan
