// The numbers of one logged step, and their two forms: the console line that scripts parse, and a line of
// metrics.jsonl.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/report/tensorboard.h"

namespace titan {

/// Sizes in bytes, times in seconds, rates per second of one device. Sums are over the steps since the last report.
struct StepReport {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;       // of this step, mean over its valid tokens
  double max_loss = 0;   // of this step: the largest of the ranks' means, each over its own valid tokens
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double step_seconds = 0;       // wall time per step since the last report
  double data_wait_seconds = 0;  // per step
  double tokens_per_second = 0;  // of one device
  int64_t flops_per_token = 0;
  std::optional<double> peak_flops;  // none: the device is not in the table, and no MFU is shown
  int64_t memory_bytes = 0;          // peak since the last report
  int64_t memory_total = 0;
  int64_t active_bytes = 0;         // of memory_bytes, held by tensors at their own peak; on a CPU the same
  int64_t allocation_retries = 0;   // of the device's allocator so far: it had to give cached memory back first
  int64_t out_of_memory_count = 0;  // so far
  int64_t host_peak_bytes = 0;      // resident memory of the process, its maximum so far
  int64_t tokens_seen = 0;
  double eta_seconds = 0;
  int64_t data_documents = 0;  // read by this process so far, whichever rank uses them
  int64_t data_tokens = 0;
  int64_t data_queue_ready = 0;  // batches that were ready when this step's was taken
  int64_t data_queue_depth = 0;
  int64_t bad_records = 0;
  int64_t long_conversations = 0;  // cut or left out
  int64_t data_loops = 0;
  int64_t skipped_steps = 0;

  /// Over all ranks; none for a single process.
  struct Ranks {
    double fastest_step_seconds = 0;
    double slowest_step_seconds = 0;
    int64_t least_memory_bytes = 0;
    int64_t most_memory_bytes = 0;
  };
  std::optional<Ranks> ranks;

  /// Memory by purpose at the peak of the first step, with its report alone.
  struct Purpose {
    std::string name;
    int64_t planned_bytes = 0;
    int64_t actual_bytes = 0;
  };
  std::vector<Purpose> memory_by_purpose;
};

/// Share of the device's dense bf16 peak that the model's operations make up; 0 where the peak is not known.
double utilisation(const StepReport& report);

/// torchtitan's last TOML-era fields, unchanged and first; then learning rate, data wait and time left.
std::string console_line(const StepReport& report, bool colour);

/// The line of a dry run's step: nothing came from other ranks, so it has no loss and no throughput.
std::string dry_run_line(const StepReport& report);

/// One JSON object; its keys are documented in docs/metrics.md.
std::string json_line(const StepReport& report);

struct ValidationReport {
  int64_t step = 0;
  double loss = 0;
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;
  int64_t memory_total = 0;
  int64_t active_bytes = 0;
};
std::string console_line(const ValidationReport& report, bool colour);
std::string json_line(const ValidationReport& report);

/// A spike (training.spike_guard).
struct SpikeReport {
  int64_t step = 0;
  double loss_deviations = 0;  // standard deviations above the mean of the window
  double norm_deviations = 0;
  bool skipped = false;
};
std::string json_line(const SpikeReport& report);

/// What the model wrote after a step (metrics.sample_freq).
struct SampleReport {
  int64_t step = 0;
  std::string prompt, text;
};
std::string json_line(const SampleReport& report);

/// torchtitan's names for the numbers of a report in TensorBoard and Weights & Biases, in its order; what it has not,
/// last.
std::vector<TaggedValue> tagged_values(const StepReport& report);
std::vector<TaggedValue> tagged_values(const ValidationReport& report);

/// Dense bf16 peak by device name (in any case); none for a device that is not in the table.
std::optional<double> peak_flops_of(const std::string& device_name);

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace titan
