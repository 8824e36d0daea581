#include "titan/train/device.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/gpu/cuda.h"
#include "titan/ops/tensor_checks.h"

namespace titan {

namespace {

DeviceFacts facts_of_gpu(int64_t gpu) {
  const GpuFacts facts = cuda().facts(gpu);
  return {.kind = DeviceFacts::Kind::gpu,
          .name = facts.name,
          .capability = facts.capability,
          .architectures = std::string(cuda().architectures())};
}

}  // namespace

DeviceFacts device_facts(const std::string& wanted, int64_t local_rank) {
  if (wanted == "cpu") return {.kind = DeviceFacts::Kind::cpu};
  if (!has_gpu()) {
    const std::string obstacle = opened_cuda() ? gpu_obstacle(cuda().state()) : "";
    if (!obstacle.empty()) return {.obstacle = obstacle};
    return {.kind = DeviceFacts::Kind::cpu};
  }
  const int64_t visible = cuda().count();
  const int64_t gpu = visible == 1 ? 0 : local_rank;
  return gpu < visible ? facts_of_gpu(gpu) : DeviceFacts();
}

DeviceFacts device_facts(const DeviceInfo& device) {
  return device.device.is_cpu() ? DeviceFacts{.kind = DeviceFacts::Kind::cpu} : facts_of_gpu(device.device.index());
}

std::vector<std::string> visible_gpus(const std::string& wanted) {
  std::vector<std::string> uuids;
  if (wanted == "cpu" || !has_gpu()) return uuids;
  for (int64_t gpu = 0; gpu < cuda().count(); ++gpu) uuids.push_back(cuda().facts(gpu).uuid);
  return uuids;
}

std::string gpu_obstacle(const CudaState& state) {
  constexpr int kNoDevice = 100, kOldDriver = 35;  // cudaError_t, whose header builds without CUDA lack
  if (state.error == 0 || state.error == kNoDevice || state.driver == 0) return {};
  const auto dotted = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  if (state.error == kOldDriver) {
    return fmt::format(
        "the NVIDIA driver of this machine is too old: it knows CUDA {}, and this program needs {}; update the driver",
        dotted(state.driver), dotted(state.runtime));
  }
  return fmt::format("the GPUs of this machine cannot be used: CUDA says \"{}\" (error {}); see what nvidia-smi says",
                     state.says, state.error);
}

DeviceInfo choose_device(const std::string& wanted, int64_t local_rank) {
  const bool present = wanted != "cpu" && has_gpu();
  TITAN_CHECK(wanted != "cuda" || present, wanted);  // device_problems has reported it
  if (!present) return {at::kCPU, processor_name(), total_memory_bytes(), {}, {}};
  // If a launcher makes only its own GPU visible to every rank, that GPU has index 0. That there are too few is no
  // fault of the config: the rendezvous reports it with the host and rank.
  const int64_t visible = cuda().count();
  const int64_t gpu = visible == 1 ? 0 : local_rank;
  if (gpu >= visible) {
    throw Error(
        ExitCode::launcher,
        fmt::format("local rank {} has no GPU: this process sees {}; start at most one rank per GPU on a host, or "
                    "say training.device = \"cpu\"",
                    local_rank, visible));
  }
  cuda().choose(gpu);
  const GpuFacts facts = cuda().facts(gpu);
  return {at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)),
          facts.name,
          facts.memory_bytes,
          facts.uuid,
          facts.pci_id,
          facts.capability};
}

MemoryUse memory_use(const at::Device& device) {
  if (device.is_cuda()) {
    const GpuMemory memory = cuda().memory(device.index());
    return {memory.reserved_peak, memory.active_peak, memory.retries, memory.out_of_memory};
  }
  const int64_t resident = peak_resident_bytes();
  return {resident, resident, 0, 0};
}

int64_t bytes_beside_allocator(const at::Device& device) {
  if (device.is_cpu()) return 0;
  return cuda().taken_bytes(device.index()) - cuda().memory(device.index()).reserved;
}

MemoryRoom memory_room(const DeviceInfo& device, int64_t host_ranks, bool share_gpu) {
  const auto size = [](int64_t bytes) { return bytes > 0 ? human_bytes(static_cast<double>(bytes)) : "nothing"; };
  const std::string all = fmt::format("{} has {}", device.name, size(device.memory_bytes));
  if (device.device.is_cpu()) {
    const std::optional<int64_t> left = memory_left_bytes(host_ranks);
    return {left, left ? fmt::format("{}, {} of it for this rank", all, size(*left)) : all};
  }
  const int64_t share = device.memory_bytes / (share_gpu ? host_ranks : 1);
  const int64_t left = std::max<int64_t>(0, share - kLibraryBytes);
  const std::string shared =
      share_gpu ? fmt::format(", for each of {} ranks {}", host_ranks, size(share)) : std::string();
  return {left, fmt::format("{}{}, {} reserved for libraries: {} left for this rank", all, shared, size(kLibraryBytes),
                            size(left))};
}

int64_t peak_memory_bytes(const at::Device& device) { return memory_use(device).reserved_peak; }

void reset_peak_memory(const at::Device& device) {
  if (device.is_cuda()) cuda().reset_peaks(device.index());
}

void wait_for_device(const at::Device& device) {
  if (device.is_cuda()) cuda().wait();
}

at::Tensor to_device_soon(std::initializer_list<double> values, const at::Device& device) {
  const bool pinned = !device.is_cpu();
  const auto size = static_cast<int64_t>(values.size());
  at::Tensor host = at::empty({size}, at::TensorOptions(at::kDouble).pinned_memory(pinned));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<double>());
  return pinned ? host.to(device, /*non_blocking=*/true) : host;
}

HostCopy::HostCopy(const at::Tensor& values) {
  TITAN_CHECK(values.defined() && values.scalar_type() == at::kDouble && values.is_contiguous(), summary_of(values));
  if (values.is_cpu()) {
    host_ = values;
    return;
  }
  host_ = at::empty(values.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  host_.copy_(values, /*non_blocking=*/true);
  copied_.emplace(values.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(values.device().type()).getStream(values.device()));
}

std::span<const double> HostCopy::wait() {
  if (copied_) copied_->synchronize();
  return values();
}

std::span<const double> HostCopy::values() const {
  return {host_.const_data_ptr<double>(), static_cast<size_t>(host_.numel())};
}

namespace {

at::Tensor numbers_of(const StepOutcome& outcome) {
  at::Tensor values = at::stack({outcome.loss.to(at::kDouble), outcome.control.norm,
                                 outcome.control.skip.to(at::kDouble), outcome.own_loss.to(at::kDouble)});
  std::vector<at::Tensor> parts{values, outcome.requests};
  if (outcome.statistics.defined()) parts.push_back(outcome.statistics);
  if (outcome.spike.defined()) parts.push_back(outcome.spike);
  return at::cat(parts);
}

}  // namespace

StepReadback::StepReadback(const StepOutcome& outcome)
    : copy_(numbers_of(outcome)), statistics_(outcome.statistics.defined() ? outcome.statistics.numel() : 0) {}

StepValues StepReadback::wait() {
  const std::span<const double> values = copy_.wait();
  StepValues found{values[0], values[1], values[2] != 0, {values[4] != 0, values[5] != 0}, values[3]};
  const std::span<const double> rest = values.subspan(6);
  found.statistics.assign(rest.begin(), rest.begin() + statistics_);
  const std::span<const double> spike = rest.subspan(static_cast<size_t>(statistics_));
  if (!spike.empty() && spike[0] != 0) found.spike = Spike{spike[1], spike[2]};
  return found;
}

}  // namespace titan
