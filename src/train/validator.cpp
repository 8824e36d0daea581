#include "titan/train/validator.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "titan/base/error.h"
#include "titan/job/data_order.h"
#include "titan/job/job.h"
#include "titan/train/batch.h"
#include "titan/train/open_data.h"

namespace titan {

Validator::Validator(const JobConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer, bool block_causal,
                     const MeshPlace& place, std::shared_ptr<Communicator> loss, const Log& log)
    : config_(config), block_causal_(block_causal), place_(place), loss_(std::move(loss)), log_(log) {
  BatchOptions options = make_batch_options(config_, block_causal_);
  options.chunks.dataset = config_.validation.dataset;
  options.chunks.section = "validation";
  options.chunks.announces_passes = false;  // not worth reporting for a set that is reread each time
  options.chunks.infinite = config_.validation.steps >= 0;
  options.queue_depth = BatchOptions().queue_depth;
  options.chunks.packing = make_packing(config_, options.chunks.dataset);
  std::string description;
  stream_ = std::make_unique<BatchStream>(open_validation_chunks(config_, place_, tokenizer, options, description),
                                          make_validation_plan(config_, place_), options);
  first_ = stream_->next();  // what is wrong with the data is reported at the start
  // In this order the same corpus is read in parts, so what is validated on does not follow from its name alone.
  if (reads_in_megatron_order(config_)) log_.info("Validation reads {}", description);
}

bool Validator::due(int64_t step) const { return step == 1 || step % config_.validation.freq == 0; }

std::optional<ValidationReport> Validator::run(int64_t step,
                                               const std::function<at::Tensor(const BatchContext&)>& loss_of,
                                               const DeviceInfo& device, const std::function<bool()>& stops,
                                               const std::function<bool()>& leaves_waits) {
  const auto start = std::chrono::steady_clock::now();
  const bool whole_set = config_.validation.steps < 0;
  DataCounters read;
  at::Tensor loss = at::zeros({}, at::TensorOptions(device.device).dtype(at::kDouble));
  const SequenceShare share = make_sequence_share(config_, place_);
  int64_t valid_tokens = 0;
  int64_t tokens = 0;
  for (int64_t batch = 0; whole_set || batch < config_.validation.steps; ++batch) {
    std::optional<StepBatch> next = first_ ? std::exchange(first_, std::nullopt) : stream_->next(leaves_waits);
    if (stops && stops()) return std::nullopt;
    if (!next) break;
    for (const MicroBatch& microbatch : next->microbatches) {
      loss.add_(loss_of(to_device(microbatch, 1.0, block_causal_, device.device, share)));
      tokens += microbatch.samples * microbatch.sequence_length;
    }
    valid_tokens += next->valid_tokens;
    read = next->counters;
    for (const std::string& notice : next->notices) {
      if (!reported_) log_.warning("validation: {}", notice);
    }
  }
  stream_->restore({});
  if (loss_) loss_->all_reduce({loss})->wait();
  report_bad_data(read);
  ValidationReport report;
  report.step = step;
  report.loss = loss.item<double>() / static_cast<double>(std::max<int64_t>(1, valid_tokens));
  // The rate is that of one rank, and these ranks share the tokens.
  const auto ranks = static_cast<double>(place_.mesh.non_data_parallel_size());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.tokens_per_second = static_cast<double>(tokens) / ranks / std::max(seconds, 1e-9);
  const MemoryUse memory = memory_use(device.device);
  report.memory_bytes = memory.reserved_peak;
  report.active_bytes = memory.active_peak;
  report.memory_total = device.memory_bytes;
  return report;
}

void Validator::report_bad_data(const DataCounters& counters) {
  if (!reported_ && counters.bad_records > 0)
    log_.warning("validation: {} bad records were left out", counters.bad_records);
  if (!reported_ && counters.long_conversations > 0) {
    log_.warning("validation: {} conversations did not fit into validation.seq_len (data.long_conversations)",
                 counters.long_conversations);
  }
  if (!reported_ && counters.invalid_utf8 > 0) {
    log_.warning("validation: {} malformed UTF-8 sequences were replaced", counters.invalid_utf8);
  }
  reported_ = true;
}

}  // namespace titan
