#include "titan/train/device.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef TITAN_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/ranges.h>
#endif

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {

namespace {

CudaState cuda_state() {
  CudaState state;
#ifdef TITAN_WITH_CUDA
  int count = 0;
  const cudaError_t error = ::cudaGetDeviceCount(&count);
  state.error = error;
  state.says = ::cudaGetErrorString(error);
  (void)::cudaGetLastError();  // told here, and no later call's
  if (::cudaDriverGetVersion(&state.driver) != cudaSuccess) state.driver = 0;
  if (::cudaRuntimeGetVersion(&state.runtime) != cudaSuccess) state.runtime = CUDART_VERSION;
#endif
  return state;
}

bool may_use_cuda(const std::string& wanted) { return wanted != "cpu" && at::hasCUDA(); }

#ifdef TITAN_WITH_CUDA
std::string uuid_of(const cudaDeviceProp& properties) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);
  return fmt::format("{:02x}", fmt::join(bytes, bytes + sizeof properties.uuid.bytes, ""));
}
#endif

}  // namespace

void require_float8(const DeviceInfo& device) {
  constexpr int kFirstWithFloat8 = 89;
  if (device.device.is_cpu() || device.capability >= kFirstWithFloat8) return;
  throw Error(ExitCode::bad_config,
              fmt::format("model.converters asks for float8, which {} (compute capability {}.{}) does not multiply: it "
                          "takes 8.9 or newer; set quantize.linear.float8.emulate = true to compute the same numbers "
                          "slowly, or leave the converter out",
                          device.name, device.capability / 10, device.capability % 10));
}

std::vector<std::string> visible_gpus(const std::string& wanted) {
  std::vector<std::string> uuids;
  if (!may_use_cuda(wanted)) return uuids;
#ifdef TITAN_WITH_CUDA
  for (c10::DeviceIndex index = 0; index < at::cuda::device_count(); ++index) {
    uuids.push_back(uuid_of(*at::cuda::getDeviceProperties(index)));
  }
#endif
  return uuids;
}

std::string gpu_obstacle(const CudaState& state) {
  constexpr int kNoDevice = 100, kOldDriver = 35;  // cudaErrorNoDevice, cudaErrorInsufficientDriver
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
  const bool present = may_use_cuda(wanted);
  const std::string obstacle = present || wanted == "cpu" ? "" : gpu_obstacle(cuda_state());
  if (!obstacle.empty()) throw Error(ExitCode::bad_config, obstacle + ", or say training.device = \"cpu\"");
  if (wanted == "cuda" && !present) {
    throw Error(
        ExitCode::bad_config,
        "training.device = \"cuda\", but this program sees no CUDA device; say training.device = \"cpu\", or check "
        "the driver (nvidia-smi) and that titan was built with a CUDA compiler");
  }
  if (!present) return {at::kCPU, processor_name(), total_memory_bytes(), {}, {}};
#ifdef TITAN_WITH_CUDA
  // A launcher that shows every rank its own GPU alone shows it as number 0.
  const int64_t visible = at::cuda::device_count();
  const int64_t index = visible == 1 ? 0 : local_rank;
  if (index >= visible) {
    throw Error(
        ExitCode::launcher,
        fmt::format("local rank {} has no GPU: this process sees {}; start at most one rank per GPU on a host, or "
                    "say training.device = \"cpu\"",
                    local_rank, visible));
  }
  at::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  return {at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)),
          properties->name,
          static_cast<int64_t>(properties->totalGlobalMem),
          uuid_of(*properties),
          fmt::format("{:04x}:{:02x}:{:02x}.0", properties->pciDomainID, properties->pciBusID, properties->pciDeviceID),
          10 * properties->major + properties->minor};
#else
  (void)local_rank;
  throw InvariantError("internal error: a CUDA device in a CPU-only build");
#endif
}

MemoryUse memory_use(const at::Device& device) {
#ifdef TITAN_WITH_CUDA
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {stats.reserved_bytes[kAll].peak, stats.active_bytes[kAll].peak, stats.num_alloc_retries, stats.num_ooms};
  }
#endif
  (void)device;
  const int64_t resident = peak_resident_bytes();
  return {resident, resident, 0, 0};
}

int64_t bytes_beside_allocator(const at::Device& device) {
#ifdef TITAN_WITH_CUDA
  if (device.is_cuda()) {
    const auto [left, all] = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(device.index());
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return static_cast<int64_t>(all - left) - stats.reserved_bytes[kAll].current;
  }
#endif
  (void)device;
  return 0;
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
  return {left, fmt::format("{}{}, and {} are set aside for libraries: {} left for this rank", all, shared,
                            size(kLibraryBytes), size(left))};
}

int64_t peak_memory_bytes(const at::Device& device) { return memory_use(device).reserved_peak; }

void reset_peak_memory(const at::Device& device) {
#ifdef TITAN_WITH_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
  (void)device;
}

void wait_for_device(const at::Device& device) {
#ifdef TITAN_WITH_CUDA
  if (device.is_cuda()) c10::cuda::device_synchronize();
#endif
  (void)device;
}

at::Tensor to_device_soon(std::initializer_list<double> values, const at::Device& device) {
  const bool pinned = !device.is_cpu();
  const auto size = static_cast<int64_t>(values.size());
  at::Tensor host = at::empty({size}, at::TensorOptions(at::kDouble).pinned_memory(pinned));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<double>());
  return pinned ? host.to(device, /*non_blocking=*/true) : host;
}

HostCopy::HostCopy(const at::Tensor& values) {
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
  std::vector<at::Tensor> parts{values, outcome.wishes};
  if (outcome.spike.defined()) parts.push_back(outcome.spike);
  return at::cat(parts);
}

}  // namespace

StepReadback::StepReadback(const StepOutcome& outcome) : copy_(numbers_of(outcome)) {}

StepValues StepReadback::wait() {
  const std::span<const double> values = copy_.wait();
  StepValues found{values[0], values[1], values[2] != 0, {values[4] != 0, values[5] != 0}, values[3]};
  if (values.size() > 6 && values[6] != 0) found.spike = Spike{values[7], values[8]};
  return found;
}

}  // namespace titan
