#include "titan/plan/description.h"

namespace titan {

int64_t width_of(std::span<const HiddenTensor> tensors) {
  int64_t width = 0;
  for (const HiddenTensor& tensor : tensors) width += tensor.width;
  return width;
}

int64_t UnitDescription::numel() const {
  int64_t total = 0;
  for (const ParameterSpec& parameter : parameters) total += parameter.numel();
  return total;
}

int64_t ModelDescription::parameter_count() const {
  int64_t total = 0;
  for (const UnitDescription& unit : units) total += unit.numel();
  return total;
}

int64_t ModelDescription::embedding_count() const {
  int64_t total = 0;
  for (const UnitDescription& unit : units) {
    if (unit.role == UnitRole::embedding) total += unit.numel();
  }
  return total;
}

int64_t ModelDescription::flops_per_token(int64_t sequence_length) const {
  return 6 * (parameter_count() - embedding_count()) + 12 * layers * heads * head_dim * sequence_length;
}

}  // namespace titan
