// What kernels say of tensors: element types and sizes, and the bytes that a launch moves. No tensors, no CUDA.
#pragma once

#include <cstdint>
#include <initializer_list>

struct CUstream_st;

namespace titan {

enum class KernelType : uint8_t { fp32, bf16 };

constexpr int64_t bytes_of(KernelType type) { return type == KernelType::fp32 ? 4 : 2; }

/// One access of a thread, where memory allows.
constexpr int64_t kPackBytes = 16;

/// Whether rows of `columns` numbers from each pointer on (null ones aside) are made of whole, aligned packs.
inline bool in_packs(KernelType type, int64_t columns, std::initializer_list<const void*> pointers) {
  bool fits = columns * bytes_of(type) % kPackBytes == 0;
  for (const void* pointer : pointers) fits = fits && reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
  return fits;
}

/// Bytes that a launch takes from and gives to device memory, each address once; `reread` is what it asks for again and
/// finds in a cache, when the arrays it is about are as small as the kernel's comment says. Single words that all
/// threads of a block read count once; atomics on single words do not.
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
