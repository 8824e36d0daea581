#include "titan/checkpoint/tensor_source.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

constexpr std::string_view kModelPrefix = "model.";

/// The rotary table that torchtitan saved until 2025; it is computed at load.
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

constexpr size_t kLine = 64;  // a cache line: streaming stores that fill one do not read it first

/// `to`: aligned to a cache line.
void stream_lines(char* to, const char* from, size_t lines) {
#if defined(__x86_64__)
  constexpr size_t kStore = 16;  // SSE2, which every x86-64 processor has
  for (size_t i = 0; i < lines * kLine; i += kLine) {
    __m128i line[kLine / kStore];
    for (size_t k = 0; k < kLine / kStore; ++k) {
      line[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + k * kStore));
    }
    for (size_t k = 0; k < kLine / kStore; ++k) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k * kStore), line[k]);
    }
  }
  _mm_sfence();  // orders the streaming stores before other threads read them
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
  // A megabyte: for less, waking a thread is a large part of the time.
  constexpr int64_t kLinesWorthAThread = (int64_t{1} << 20) / kLine;
  at::parallel_for(0, static_cast<int64_t>(lines), kLinesWorthAThread, [&](int64_t begin, int64_t end) {
    const size_t offset = head + static_cast<size_t>(begin) * kLine;
    stream_lines(target + offset, source + offset, static_cast<size_t>(end - begin));
  });
  if (tail < bytes) std::memcpy(target + tail, source + tail, bytes - tail);
}

namespace {

constexpr const char* kFactors = "_scale_inv";

bool is_quantised(const LogicalTensor& tensor) { return tensor.type == at::kFloat8_e4m3fn; }

int64_t blocks(int64_t length, int64_t block) { return (length + block - 1) / block; }

/// For each row (or column) of a range, the index of its block relative to the range's first block.
at::Tensor block_of_each(int64_t first, int64_t count, int64_t block) {
  return at::arange(first, first + count, at::kLong).div_(block, "floor").sub_(first / block);
}

}  // namespace

BlockScaledWeights::BlockScaledWeights(TensorSource& stored, ScaleBlock block) : stored_(stored), block_(block) {
  tensors_ = stored.tensors();
  for (const auto& [name, tensor] : stored.tensors()) {
    if (!is_quantised(tensor)) continue;
    const auto fail = [&](const std::string& why) {
      throw DamageError(fmt::format("{}: {} is quantised, and {}", stored.description(), name, why));
    };
    if (tensor.shape.size() != 2) fail("has no rows and columns to cut into blocks");
    const auto factors = stored.tensors().find(name + kFactors);
    if (factors == stored.tensors().end()) fail(fmt::format("there is no {}{}", name, kFactors));
    const std::vector<int64_t> wanted{blocks(tensor.shape[0], block.rows), blocks(tensor.shape[1], block.columns)};
    if (factors->second.shape != wanted) {
      fail(fmt::format("its {}{} has shape {} instead of {}", name, kFactors, shape_text(factors->second.shape),
                       shape_text(wanted)));
    }
    if (is_quantised(factors->second) || !c10::isFloatingType(factors->second.type)) {
      fail(fmt::format("its {}{} is of {}", name, kFactors, python_name(factors->second.type)));
    }
    tensors_.at(name).type = at::kFloat;
    tensors_.erase(name + kFactors);
  }
}

at::Tensor BlockScaledWeights::factors(const std::string& name, const Box& box) {
  const std::vector<int64_t> sizes{block_.rows, block_.columns};
  Box needed;
  for (size_t d = 0; d < sizes.size(); ++d) {
    needed.offset.push_back(box.offset[d] / sizes[d]);
    needed.extent.push_back(blocks(box.offset[d] + box.extent[d], sizes[d]) - needed.offset[d]);
  }
  const at::Tensor by_block = at::empty(needed.extent, at::kFloat);
  stored_.read(name + kFactors, needed, by_block);
  return by_block.index_select(0, block_of_each(box.offset[0], box.extent[0], sizes[0]))
      .index_select(1, block_of_each(box.offset[1], box.extent[1], sizes[1]));
}

void BlockScaledWeights::read(const std::string& name, const Box& box, const at::Tensor& into) {
  if (!is_quantised(stored_.tensors().at(name))) return stored_.read(name, box, into);
  TITAN_CHECK(into.defined() && into.sizes() == at::IntArrayRef(box.extent), name, summary_of(into), box.extent);
  if (box.numel() == 0) return;
  const at::Tensor quantised = at::empty(box.extent, at::kFloat8_e4m3fn);
  stored_.read(name, box, quantised);
  into.copy_(quantised.to(at::kFloat).mul_(factors(name, box)));
}

}  // namespace titan
