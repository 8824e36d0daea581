#include "titan/train/run.h"
#include "titan/train/open_data.h"

#include <ATen/ops/zeros.h>

#include "finding_exchange.h"
#include "run_checkpoints.h"
#include "run_memory.h"
#include "run_reporter.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/job/job.h"
#include "titan/stream/chunk_stream.h"
#include "titan/train/run_folder.h"
#include "titan/train/state_check.h"
#include "titan/train/validator.h"

namespace titan {
namespace {

/// Data position from another program's checkpoint. It counts documents, so the corpus is read up to that document.
std::optional<StreamState> find_data_position(const Run& run, const SamplePosition& samples) {
  std::optional<StreamState> state;
  std::string problem = foreign_position_obstacle(run.config, run.place, samples.ranks);
  if (problem.empty()) {
    run.log.info("Looking for the data position in the corpus: after {} documents", samples.samples);
    FoundPosition found = find_position(*open_training_documents(run.config, run.place, *run.data.tokenizer),
                                        *run.data.tokenizer, samples.samples, samples.left_tokens);
    problem = std::move(found.problem);
    state = found.state;
  }
  if (!problem.empty()) {
    run.log.warning("the data position could not be restored ({}): the data start from the beginning", problem);
    return std::nullopt;
  }
  run.log.info("the data position was restored: {} documents had been read, {} tokens of them are still to be used",
               samples.samples, samples.left_tokens.size());
  return state;
}

}  // namespace

Run::Run(const JobConfig& job, const World& who, const Log& to) : config(job), log(to), world(who) {}
Run::~Run() = default;

double Run::own_share(const StepBatch& batch) const {
  const Plan& plan = model.plan();
  if (plan.units.empty() || plan.units.back().role != UnitRole::head || batch.valid_tokens == 0) return 0;
  return static_cast<double>(valid_tokens_of(batch, share)) / static_cast<double>(batch.valid_tokens);
}

StartingPoint resume(Run& run) {
  if (!run.checkpoints) return {};
  StartingPoint start = run.checkpoints->load();
  RunPosition& position = start.position;
  if (start.has_weights) run.model.assembly.executor->weights_changed();
  if (position.samples) {
    if (const auto state = find_data_position(run, *position.samples)) position.data = state;
  }
  if (position.data) run.data.stream->restore(*position.data);
  SpikeGuard* guard = run.model.guard.get();
  if (guard && position.guard && !guard->restore(*position.guard)) {
    run.log.shared_warning(
        "training.spike_window differs from the checkpoint's: the spike guard starts with an empty window");
  }
  return start;
}

at::Tensor infer(const Run& run, const BatchContext& batch, UnitMode mode) {
  at::Tensor result = run.model.assembly.executor->infer(batch, mode);
  if (!run.model.plan().request.pipeline || mode != UnitMode::logits) return result;
  // The rank that writes the dump may run another stage.
  std::vector<int64_t> shape = (batch.logit_rows.defined() ? batch.logit_rows : batch.tokens).sizes().vec();
  shape.push_back(run.model.description.vocabulary);
  // Logits gathered from uneven shards of the vocabulary are a view with gaps between its rows.
  result = result.defined() ? result.to(at::kFloat).contiguous()
                            : at::zeros(shape, batch.tokens.options().dtype(at::kFloat));
  run.communicators.pipeline->all_reduce({result})->wait();
  return result;
}

void use_training_timeouts(Run& run) {
  const std::chrono::seconds timeout(run.config.comm.train_timeout_seconds);
  run.communicators.set_timeout(timeout);
  if (run.model.assembly.peer_memory) run.model.assembly.peer_memory->set_timeout(timeout);
}

// If a rank closed a communicator early, later ranks could lose the last chunks of a collective.
void close_communicators(Run& run) {
  const World& world = run.world;
  if (run.device.device.is_cpu() || !world.store) return;
  wait_for_device(run.device.device);
  if (world.is_distributed()) {
    const BarrierOptions options{.timeout = std::chrono::hours(2),
                                 .response_timeout = std::chrono::seconds(run.config.comm.train_timeout_seconds),
                                 .waits = world.waits,
                                 .report = {}};
    make_store_barrier(world.store->clone(), "end", world.rank, world.size, options)->wait_for_all();
  }
  run.communicators.shut_down();
}

}  // namespace titan
