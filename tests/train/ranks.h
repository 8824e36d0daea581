// Several ranks as threads of a test: each has its own world, communicators, model and optimizer, and runs
// whole steps on its share of a batch that all could draw alone.
#pragma once

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "side_channel_family.h"
#include "support/layout_row.h"
#include "support/replayed_work.h"
#include "support/tensors.h"
#include "titan/optimize/adam.h"
#include "titan/parallel/assembly.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/step_runner.h"

namespace titan {

/// What one rank saw; gradients are whole, from step 1.
struct RankResult {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> stop_requests;
  std::vector<std::vector<double>> statistics;  // of each step
  std::vector<std::vector<double>> spikes;      // what the spike guard said of each step, if there is one
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> first_update;   // whole weights, before the first step
  std::map<std::string, at::Tensor> weights;        // and after the last
  std::map<std::string, at::Tensor> first_moments;  // whole, after the last step, of rows that Muon steps
  std::vector<std::string> strays;                  // parameters whose gradient here is not that part of the whole one
  std::map<std::string, TrafficTable> traffic;      // of one later step, by communicator
  std::vector<std::string> reported;                // by check_traffic, of that step
  Plan plan;
  int64_t to_device_bytes = 0, to_host_bytes = 0;  // of that step
  int64_t device_peak = 0, host_peak = 0;          // of weights that live on the host
  int64_t activation_bytes = 0, moment_bytes = 0;  // that crossed in that step, each way
  int64_t most_live = 0;                           // of a pipeline
  int64_t gradient_bytes = 0;                      // after the last step
  ReplayCounts replays;                            // of recorded graphs
  int64_t updated_matrices = 0;                    // by this rank's WholeMatrixOptimizer, in all steps
  int64_t moment_bytes_held = 0;
  int64_t matrix_bytes_held = 0;  // at the most, from COLLECT to STEP, beyond what was there before
};

/// What happens in a run: ways to break it, for tests of the tests, a request to stop, and checkpoints.
struct Fault {
  std::optional<int64_t> stopping_rank;  // requests it in step 2
  /// May put others in the place of the communicators that were made; what those did is counted.
  std::function<void(int64_t rank, MeshCommunicators& made)> communicators;
  std::function<void(int64_t rank, Parameter& parameter)> reduced_gradient;
  SideFault side = SideFault::none;  // of a row with a side channel
  std::optional<int64_t> side_rank;  // where; none: on all ranks
  /// A spike guard judges every step, and the loss of this step is scaled up before the backward pass.
  std::optional<int64_t> spiked_step;
  /// Folders of checkpoints: the steps after `steps_before` follow the one that is loaded, and the last is saved.
  std::filesystem::path load_from = {}, save_to = {};
  int64_t steps_before = 0;
};

/// Trains the row's model for `steps` steps on all ranks of the row; the results by rank.
std::vector<RankResult> train_ranks(const LayoutRow& row, int64_t steps, const Fault& fault = {});

}  // namespace titan
