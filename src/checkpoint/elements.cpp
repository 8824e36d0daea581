#include "elements.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace titan {
namespace {

/// Elements that follow each other in memory when the last dimensions are walked: the size of one run.
int64_t run_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t& outer_dimensions) {
  int64_t run = 1;
  outer_dimensions = static_cast<int64_t>(sizes.size());
  while (outer_dimensions > 0) {
    const auto d = static_cast<size_t>(outer_dimensions - 1);
    if (sizes[d] != 1 && strides[d] != run) break;
    run *= sizes[d];
    --outer_dimensions;
  }
  return run;
}

/// Reads `sizes` elements that lie in `file` from `first_byte` on with `strides` into `into`, a CPU tensor of the same
/// sizes and dtype, run by run. Both must have runs of more than single elements to be worth it.
void read_runs(CheckedReader& file, int64_t first_byte, at::IntArrayRef strides, const at::Tensor& into) {
  int64_t outer_source = 0, outer_target = 0;
  run_of(into.sizes(), strides, outer_source);
  run_of(into.sizes(), into.strides(), outer_target);
  const int64_t outer = std::max(outer_source, outer_target);
  int64_t run = 1;
  for (int64_t d = outer; d < into.dim(); ++d) run *= into.size(d);
  const auto element = static_cast<int64_t>(into.element_size());
  auto* const memory = static_cast<char*>(into.mutable_data_ptr());
  std::vector<int64_t> index(static_cast<size_t>(outer), 0);
  for (;;) {
    int64_t source = 0, target = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      source += index[d] * strides[d];
      target += index[d] * into.stride(static_cast<int64_t>(d));
    }
    file.read(first_byte + source * element, {memory + target * element, static_cast<size_t>(run * element)});
    int64_t d = outer - 1;
    for (; d >= 0; --d) {  // the next index, last dimension fastest
      const auto place = static_cast<size_t>(d);
      if (++index[place] < into.size(d)) break;
      index[place] = 0;
    }
    if (d < 0) return;
  }
}

/// The whole chunk as a tensor of its own: for strides that no run of memory has.
at::Tensor read_chunk(CheckedReader& file, const StoredElements& stored) {
  const auto element = static_cast<int64_t>(c10::elementSize(stored.type));
  at::Tensor storage = at::empty({stored.storage_bytes / element}, stored.type);
  file.read(stored.storage_byte,
            {static_cast<char*>(storage.mutable_data_ptr()), static_cast<size_t>(storage.nbytes())});
  return storage.as_strided(stored.shape, stored.strides, (stored.first_byte - stored.storage_byte) / element);
}

}  // namespace

at::Tensor narrowed(at::Tensor tensor, const Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return tensor;
}

void read_elements(CheckedReader& file, const StoredElements& stored, const Box& part, const at::Tensor& into) {
  const bool rows = !stored.strides.empty() && stored.strides.back() == 1;
  const bool whole_rows = rows || stored.shape.empty() || stored.shape.back() == 1;
  if (!whole_rows) {
    into.copy_(narrowed(read_chunk(file, stored), part));
    return;
  }
  int64_t first = stored.first_byte;
  for (size_t d = 0; d < stored.strides.size(); ++d) {
    first += part.offset[d] * stored.strides[d] * static_cast<int64_t>(c10::elementSize(stored.type));
  }
  if (into.is_cpu() && into.scalar_type() == stored.type && (into.dim() == 0 || into.stride(-1) == 1)) {
    read_runs(file, first, stored.strides, into);
    return;
  }
  const at::Tensor staged = at::empty(part.extent, stored.type);
  read_runs(file, first, stored.strides, staged);
  into.copy_(staged);
}

}  // namespace titan
