// Element types, their sizes, and the memory traffic of a launch. No tensors, no CUDA.
#pragma once

#include <cstdint>
#include <initializer_list>

struct CUstream_st;

namespace titan {

enum class KernelType : uint8_t { fp32, bf16 };

constexpr int64_t bytes_of(KernelType type) { return type == KernelType::fp32 ? 4 : 2; }

/// Bytes of one access of a thread, if aligned.
constexpr int64_t kPackBytes = 16;

/// True if rows of `columns` elements at each pointer (null ones are skipped) consist of whole, aligned packs.
inline bool in_packs(KernelType type, int64_t columns, std::initializer_list<const void*> pointers) {
  bool fits = columns * bytes_of(type) % kPackBytes == 0;
  for (const void* pointer : pointers) fits = fits && reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
  return fits;
}

/// Bytes that a launch reads from and writes to device memory, each address once. `reread` bytes are requested again
/// and hit a cache if the arrays are as small as the kernel's comment says. A word that all threads of a block read
/// counts once; atomics on single words do not count.
struct KernelTraffic {
  int64_t read = 0;
  int64_t written = 0;
  int64_t reread = 0;

  constexpr int64_t bytes() const { return read + written; }
  constexpr KernelTraffic operator+(const KernelTraffic& other) const {
    return {read + other.read, written + other.written, reread + other.reread};
  }
  bool operator==(const KernelTraffic&) const = default;
};

}  // namespace titan
