#include "titan/checkpoint/saver.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <vector>

#include "titan/distributed/own_device.h"

namespace titan {

namespace {

/// What this thread has enqueued that makes the state is done: other threads, on other streams, will copy it.
void wait_for_devices(const CheckpointState& state) {
  std::vector<at::Device> devices;
  for (const StateTensor& tensor : state.tensors) {
    if (!tensor.local.defined() || tensor.local.is_cpu()) continue;
    const at::Device device = tensor.local.device();
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  for (const at::Device device : devices) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace

Saver::Saver(Storage& storage, RankMeeting& meeting, SaverOptions options, std::function<void(const SaveOutcome&)> done)
    : storage_(storage), meeting_(meeting), options_(std::move(options)), done_(std::move(done)) {}

Saver::~Saver() {
  if (writer_.joinable()) writer_.join();
}

std::shared_ptr<const SavePlan> Saver::plan_for(const std::vector<PlacedTensor>& tensors) {
  std::vector<LogicalTensor> wanted;
  for (const PlacedTensor& placed : tensors) wanted.push_back(placed.tensor);
  if (!plan_ || wanted != planned_) {
    plan_ = std::make_shared<const SavePlan>(plan_save(tensors, meeting_.size(), options_.split));
    planned_ = std::move(wanted);
    snapshot_ = std::make_unique<StateSnapshot>(options_.mode == SaveMode::asynchronous_pinned);
  }
  return plan_;
}

void Saver::save(int64_t step, const CheckpointState& state, bool now) {
  finish();
  SaveJob job{{options_.root, step, options_.run}, nullptr, state.placed(), {}, state.facts, {}};
  job.plan = plan_for(job.tensors);
  if (meeting_.rank() == 0) {
    for (const StateValue& value : state.values) job.values.push_back({value.name, value_blob(value.value)});
  }
  const std::vector<PlannedWrite>& writes = job.plan->writes[static_cast<size_t>(meeting_.rank())];
  if (now || options_.mode == SaveMode::synchronous) {
    job.written = [&](size_t i) { return written_part(state.tensors[writes[i].tensor], writes[i]); };
    wait_for_devices(state);
    done_(save_together(storage_, meeting_, job));
    return;
  }
  snapshot_->begin(state, writes);
  job.written = [this](size_t i) { return snapshot_->read(i); };
  writer_ = std::thread(on_own_device([this, job = std::move(job)]() mutable { write(std::move(job)); }));
}

void Saver::write(SaveJob job) {
  try {
    const SaveOutcome outcome = save_together(storage_, meeting_, job);
    snapshot_->end();
    done_(outcome);
  } catch (...) {
    snapshot_->end();
    failure_ = std::current_exception();  // read after the thread has been joined
  }
}

void Saver::detach() {
  if (snapshot_) snapshot_->detach();
}

void Saver::finish() {
  if (writer_.joinable()) writer_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace titan
