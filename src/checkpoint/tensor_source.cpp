#include "titan/checkpoint/tensor_source.h"

#include <algorithm>
#include <array>

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

}  // namespace titan
