#include "titan/ops/recompute.h"

#include <ATen/ops/empty.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {
namespace {

/// Handles undefined results: the number of statistics differs between norms.
at::Tensor alias_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach() : at::Tensor(); }

uint64_t content_hash(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    at::Tensor bytes = tensor.detach().contiguous().cpu();
    hash = XXH3_64bits_withSeed(bytes.const_data_ptr(), bytes.nbytes(), hash);
  }
  return hash;
}

}  // namespace

void Recorder::record(ResultKind kind, int ordinal, std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = alias_of(tensor);
  uint64_t hash = hash_check_ ? content_hash(tensors) : 0;
  kept_.push_back({kind, ordinal, std::move(tensors), hash});
}

std::vector<at::Tensor> Recorder::replay(ResultKind kind, int ordinal) {
  TITAN_CHECK(!kept_.empty() && "the replay asks for what the first run recorded", name(kind), ordinal);
  Kept kept = std::move(kept_.front());
  kept_.pop_front();
  TITAN_CHECK(kept.kind == kind && kept.ordinal == ordinal, name(kind), ordinal, name(kept.kind), kept.ordinal);
  if (hash_check_) TITAN_CHECK(content_hash(kept.tensors) == kept.hash, name(kind), ordinal);
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& tensor : kept.tensors) aliases.push_back(alias_of(tensor));
  return aliases;
}

std::vector<at::Tensor> Recorder::kept() const {
  std::vector<at::Tensor> tensors;
  for (const Kept& kept : kept_) tensors.insert(tensors.end(), kept.tensors.begin(), kept.tensors.end());
  return tensors;
}

std::vector<at::Tensor*> Recorder::kept_places() {
  std::vector<at::Tensor*> places;
  for (Kept& kept : kept_) {
    for (at::Tensor& tensor : kept.tensors) places.push_back(&tensor);
  }
  return places;
}

at::Tensor placeholder(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({1}, options).expand(sizes);
}

}  // namespace titan
