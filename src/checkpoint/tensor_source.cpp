#include "titan/checkpoint/tensor_source.h"

#include <ATen/Parallel.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace titan {

namespace {

constexpr std::string_view kModelPrefix = "model.";

/// A table that torchtitan saved until 2025 and every program computes anew.
constexpr std::string_view kRotaryTable = "freqs_cis";

}  // namespace

bool holds_other_state(const std::string& key) {
  constexpr std::array<std::string_view, 4> kOthers{"optimizer.", "lr_scheduler.", "dataloader.", "train_state."};
  return std::any_of(kOthers.begin(), kOthers.end(), [&](std::string_view other) { return key.starts_with(other); });
}

CheckpointSource::CheckpointSource(OpenCheckpoint& checkpoint) : checkpoint_(checkpoint) {
  for (const auto& [key, stored] : checkpoint.index().tensors) {
    if (holds_other_state(key)) continue;
    const bool prefixed = key.starts_with(kModelPrefix);
    if (prefixed) prefix_ = kModelPrefix;
    LogicalTensor tensor = stored.tensor;
    if (prefixed) tensor.name = key.substr(kModelPrefix.size());
    if (tensor.name != kRotaryTable) tensors_[tensor.name] = tensor;
  }
}

void CheckpointSource::read(const std::string& name, const Box& box, const at::Tensor& into) {
  LogicalTensor tensor = tensors_.at(name);
  tensor.name = prefix_ + name;
  const LoadTarget target{tensor, box, into, /*any_type=*/true};
  checkpoint_.load({&target, 1});
}

namespace {

constexpr size_t kLine = 64;  // of a cache

/// `to` begins at a line of the cache.
void stream_lines(char* to, const char* from, size_t lines) {
#if defined(__x86_64__)
  constexpr size_t kStore = 16;
  for (size_t i = 0; i < lines * kLine; i += kLine) {
    __m128i line[kLine / kStore];
    for (size_t k = 0; k < kLine / kStore; ++k) {
      line[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + k * kStore));
    }
    for (size_t k = 0; k < kLine / kStore; ++k) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k * kStore), line[k]);
    }
  }
  _mm_sfence();  // streamed stores are ordered by nothing else, and another thread will read them
#else
  std::memcpy(to, from, lines * kLine);
#endif
}

}  // namespace

void copy_streamed(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  const size_t lines = (bytes - head) / kLine;
  const size_t tail = head + lines * kLine;
  if (head > 0) std::memcpy(target, source, head);
  constexpr int64_t kLinesWorthAThread = (int64_t{1} << 20) / kLine;
  at::parallel_for(0, static_cast<int64_t>(lines), kLinesWorthAThread, [&](int64_t begin, int64_t end) {
    const size_t offset = head + static_cast<size_t>(begin) * kLine;
    stream_lines(target + offset, source + offset, static_cast<size_t>(end - begin));
  });
  if (tail < bytes) std::memcpy(target + tail, source + tail, bytes - tail);
}

}  // namespace titan
