#include "titan/checkpoint/saver.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <vector>

#include "streamed_copy.h"

namespace titan {

at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write) {
  // A rank writes the box that it holds, whole.
  TITAN_CHECK(tensor.local.defined() && tensor.local.sizes() == at::IntArrayRef(write.box.extent) &&
                  tensor.local.scalar_type() == tensor.placed.tensor.type,
              tensor.placed.tensor.name);
  return tensor.local.detach().to(at::kCPU).contiguous();
}

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
    staged_.clear();
    pinned_ = std::make_shared<PinnedMemory>();
  }
  return plan_;
}

void Saver::stage(const SavePlan& plan, const CheckpointState& state) {
  const std::vector<PlannedWrite>& writes = plan.writes[static_cast<size_t>(meeting_.rank())];
  std::optional<at::Device> device;
  for (size_t i = 0; i < writes.size(); ++i) {
    const StateTensor& tensor = state.tensors[writes[i].tensor];
    TITAN_CHECK(tensor.local.defined() && tensor.local.sizes() == at::IntArrayRef(writes[i].box.extent),
                tensor.placed.tensor.name);
    const bool beside = options_.mode == SaveMode::asynchronous_pinned && !tensor.local.is_cpu();
    if (i == staged_.size()) {
      const at::ScalarType type = tensor.placed.tensor.type;
      const std::vector<int64_t>& extent = writes[i].box.extent;
      staged_.push_back(beside ? pinned_->allocate(c10::multiply_integers(extent), type).view(extent)
                               : at::empty(extent, at::TensorOptions(type)));
    }
    if (tensor.local.is_cpu() && tensor.local.is_contiguous() &&
        tensor.local.scalar_type() == staged_[i].scalar_type()) {
      copy_streamed(staged_[i].mutable_data_ptr(), tensor.local.const_data_ptr(), tensor.local.nbytes());
    } else {
      staged_[i].copy_(tensor.local.detach(), /*non_blocking=*/beside);
    }
    if (beside) device = tensor.local.device();
  }
  if (!device) return;
  copied_.emplace(device->type());
  copied_->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
}

void Saver::save(int64_t step, const CheckpointState& state, bool now) {
  finish();
  SaveJob job{{options_.root, step, options_.run}, nullptr, state.placed(), {}, state.facts, {}};
  job.plan = plan_for(job.tensors);
  if (meeting_.rank() == 0) {
    for (const StateValue& value : state.values) job.values.push_back({value.name, value_blob(value.value)});
  }
  if (now || options_.mode == SaveMode::synchronous) {
    const std::vector<PlannedWrite>& writes = job.plan->writes[static_cast<size_t>(meeting_.rank())];
    job.written = [&](size_t i) { return written_part(state.tensors[writes[i].tensor], writes[i]); };
    wait_for_devices(state);
    done_(save_together(storage_, meeting_, job));
    return;
  }
  stage(*job.plan, state);
  job.written = [this](size_t i) { return staged_[i]; };
  writer_ = std::thread([this, job = std::move(job)]() mutable { write(std::move(job)); });
}

void Saver::write(SaveJob job) {
  try {
    if (copied_) copied_->synchronize();
    done_(save_together(storage_, meeting_, job));
  } catch (...) {
    failure_ = std::current_exception();  // read after the thread has been joined
  }
}

void Saver::wait_for_staging() {
  if (copied_) copied_->synchronize();
}

void Saver::finish() {
  if (writer_.joinable()) writer_.join();
  copied_.reset();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

int64_t Saver::staging_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : staged_) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace titan
