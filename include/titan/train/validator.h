// The validation loop: the loss over a separate corpus, summed over valid tokens, with the executor's evaluation
// program. Owned by the trainer. Every validation reads its corpus from the beginning and does not change weights,
// optimizer or training stream.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/parallel/executor.h"
#include "titan/report/step_report.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/device.h"

namespace titan {

class Validator {
 public:
  /// Opens the set and reads its first batch, so that a problem of the set is reported before training. Throws
  /// Error(bad_data).
  Validator(const JobConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer, bool block_causal,
            const MeshPlace& place, std::shared_ptr<Communicator> loss, const Log& log);

  /// Step 1 and every validation.freq steps.
  bool due(int64_t step) const;
  /// Validates on the whole set, or on validation.steps batches, each time from the beginning. `loss_of` returns the
  /// sum of a batch's losses, an fp64 scalar. Nothing is reported if `stops`, called before every batch, returns true;
  /// it must return the same on all ranks. A wait for data ends once `leaves_waits` returns true; then `stops` must,
  /// too. Only the first run warns about the set's contents: later ones read the same. Throws Error(bad_data).
  std::optional<ValidationReport> run(int64_t step, const std::function<at::Tensor(const BatchContext&)>& loss_of,
                                      const DeviceInfo& device, const std::function<bool()>& stops = {},
                                      const std::function<bool()>& leaves_waits = {});

 private:
  void report_bad_data(const DataCounters& counters);

  const JobConfig& config_;
  bool block_causal_;
  MeshPlace place_;
  std::shared_ptr<Communicator> loss_;  // ranks that read different samples; null for a single process
  const Log& log_;
  std::unique_ptr<BatchStream> stream_;  // between validations at the beginning of the set
  std::optional<StepBatch> first_;       // its first batch, until the first validation
  bool reported_ = false;
};

}  // namespace titan
