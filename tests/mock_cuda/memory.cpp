#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device.h"
#include "ledger.h"
#include "optimizer.h"
#include "stream.h"

namespace mock_cuda {
namespace {

struct Block {
  size_t bytes = 0;
  Kind kind = Kind::device;
  int device = 0;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;
  std::map<int, size_t> used;

  const Block* at(const void* address) {
    auto after = blocks.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (after == blocks.begin()) return nullptr;
    const auto& [begin, block] = *std::prev(after);
    return reinterpret_cast<uintptr_t>(address) < begin + block.bytes ? &block : nullptr;
  }
};

Memory& memory() {
  static auto* it = new Memory;
  return *it;
}

size_t rounded(size_t bytes) {
  constexpr size_t kUnit = size_t{2} << 20;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

void add_block(void* address, Block block) {
  const std::lock_guard lock(memory().mutex);
  memory().blocks[reinterpret_cast<uintptr_t>(address)] = block;
}

Block remove_block(void* address) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().blocks.find(reinterpret_cast<uintptr_t>(address));
  if (found == memory().blocks.end()) return {};
  const Block block = found->second;
  memory().blocks.erase(found);
  return block;
}

const char* direction(Kind from, Kind to) {
  if (from == Kind::device)
    return to == Kind::device ? "on the device" : to == Kind::pinned ? "to pinned" : "to pageable";
  return to != Kind::device ? "on the host" : from == Kind::pinned ? "from pinned" : "from pageable";
}

}  // namespace

bool hollow() {
  static const bool it = std::getenv("MOCK_CUDA_HOLLOW") != nullptr;
  return it;
}

Kind kind_of(const void* address) {
  const std::lock_guard lock(memory().mutex);
  const Block* block = memory().at(address);
  return block ? block->kind : Kind::pageable;
}

bool take(int device, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  size_t& used = memory().used[device];
  if (used + bytes > device_bytes(device)) return false;
  used += bytes;
  Ledger::of_process().peak("device bytes", static_cast<int64_t>(used));
  return true;
}

void give(int device, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().used[device] -= bytes;
}

void* reserve_addresses(size_t bytes, bool usable) {
  void* address = ::mmap(nullptr, bytes, usable ? PROT_READ | PROT_WRITE : PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  add_block(address, {bytes, Kind::device, current_device()});
  return address;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool blocking) {
  if (bytes == 0) return cudaSuccess;
  const Kind source = kind_of(from), target = kind_of(to);
  const std::string name = std::string("copy ") + direction(source, target);
  Ledger::of_process().add("copies", name, static_cast<int64_t>(bytes));
  const bool is_default = reinterpret_cast<uintptr_t>(stream) <= 2;
  Ledger::of_process().add("copies by stream", name + (is_default ? ", the default stream" : ", another stream"),
                           static_cast<int64_t>(bytes));
  if (bytes >= traced_bytes()) trace(name.c_str());
  const bool capturing = is_capturing(stream);
  if (hollow() && target == Kind::device && !(source == Kind::pageable && optimizer_counts())) {
    if (capturing && source == Kind::pageable) {
      Ledger::of_process().trouble("memory that is not pinned is copied inside a recording");
    }
    enqueue(stream, {name, nullptr});
  } else if (source == Kind::pageable &&
             target == Kind::device) {  // CUDA stages it: the host may go on, and write there
    if (capturing) Ledger::of_process().trouble("memory that is not pinned is copied inside a recording");
    const auto* begin = static_cast<const unsigned char*>(from);
    auto staged = std::make_shared<std::vector<unsigned char>>(begin, begin + bytes);
    enqueue(stream, {name, [to, staged] { std::memcpy(to, staged->data(), staged->size()); }});
  } else {
    enqueue(stream, {name, [to, from, bytes] { std::memmove(to, from, bytes); }});
  }
  if (!blocking && target != Kind::pageable) return cudaSuccess;
  if (capturing) {
    Ledger::of_process().trouble("a copy that the host waits for, inside a recording");
    return set_error(cudaErrorStreamCaptureUnsupported);
  }
  note_wait(blocking ? "cudaMemcpy" : "cudaMemcpyAsync to memory that is not pinned");
  drain(stream);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t stream, bool) {
  Ledger::of_process().add("copies", "fill", static_cast<int64_t>(bytes));
  if (hollow()) {
    enqueue(stream, {"fill", nullptr});
    return cudaSuccess;
  }
  enqueue(stream, {"fill", [to, value, bytes] { std::memset(to, value, bytes); }});
  return cudaSuccess;
}

}  // namespace mock_cuda

using namespace mock_cuda;  // NOLINT: the rest of the file is CUDA's own interface

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (const cudaError_t refused = unsafe_while_capturing("cudaMalloc")) return refused;
  touch("cudaMalloc");
  Ledger::of_process().add("allocations", "cudaMalloc", static_cast<int64_t>(bytes));
  const size_t size = rounded(bytes);
  if (!take(current_device(), size)) return set_error(cudaErrorMemoryAllocation);
  *address = reserve_addresses(size, true);
  if (*address) return cudaSuccess;
  give(current_device(), size);
  return set_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* address) {
  if (!address) return cudaSuccess;
  if (const cudaError_t refused = unsafe_while_capturing("cudaFree")) return refused;
  touch("cudaFree");
  note_wait("cudaFree");
  drain_all();
  const Block block = remove_block(address);
  if (block.bytes == 0) {
    Ledger::of_process().trouble("cudaFree of what is not allocated");
    return set_error(cudaErrorInvalidValue);
  }
  give(block.device, block.bytes);
  ::munmap(address, block.bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  if (const cudaError_t refused = unsafe_while_capturing("cudaHostAlloc")) return refused;
  touch("cudaHostAlloc");
  Ledger::of_process().add("allocations", "cudaHostAlloc", static_cast<int64_t>(bytes));
  if (lacks_memory("cudaHostAlloc")) return set_error(cudaErrorMemoryAllocation);
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*address) return set_error(cudaErrorMemoryAllocation);
  add_block(*address, {std::max<size_t>(bytes, 1), Kind::pinned, 0});
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void* address) {
  if (!address) return cudaSuccess;
  note_wait("cudaFreeHost");
  drain_all();
  remove_block(address);
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  add_block(address, {bytes, Kind::pinned, 0});
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  remove_block(address);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  touch("cudaMemGetInfo");
  const std::lock_guard lock(memory().mutex);
  *all = device_bytes(current_device());
  *left = *all - memory().used[current_device()];
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const std::lock_guard lock(memory().mutex);
  const Block* block = memory().at(address);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = !block                        ? cudaMemoryTypeUnregistered
                     : block->kind == Kind::device ? cudaMemoryTypeDevice
                                                   : cudaMemoryTypeHost;
  attributes->device = block ? block->device : -2;
  void* own = const_cast<void*>(address);
  if (block && block->kind == Kind::device) attributes->devicePointer = own;
  if (!block || block->kind == Kind::pinned) attributes->hostPointer = own;
  if (block && block->kind == Kind::pinned) attributes->devicePointer = own;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (const cudaError_t refused = unsafe_while_capturing("cudaMemcpy")) return refused;
  return copy(to, from, bytes, nullptr, true);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width, stream, false);
    if (error) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return fill(to, value, bytes, stream, false);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes, nullptr, true); }
}
