#include "titan/model/model.h"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <array>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/model/llama/llama.h"
#include "titan/model/qwen/qwen.h"
#include "titan/model/state_dict_adapter.h"
#include "titan/ops/tensor_checks.h"

namespace titan {

void check_batch(const BatchContext& batch) {
  const at::Tensor &tokens = batch.tokens, &positions = batch.positions, &rows = batch.logit_rows;
  TITAN_CHECK(
      tokens.defined() && tokens.scalar_type() == at::kLong && tokens.dim() == 2 && same_form(tokens, batch.labels),
      summary_of(tokens), summary_of(batch.labels));
  // One row of positions serves all samples.
  TITAN_CHECK(!positions.defined() ||
                  (same_kind(positions, tokens) && positions.dim() == 2 && positions.size(1) == tokens.size(1) &&
                   (positions.size(0) == 1 || positions.size(0) == tokens.size(0))),
              summary_of(positions), summary_of(tokens));
  TITAN_CHECK(!rows.defined() || (same_kind(rows, tokens) && rows.dim() == 1), summary_of(rows), summary_of(tokens));
  TITAN_CHECK(!batch.loss_scale_at.defined() || is_number(batch.loss_scale_at, at::kDouble),
              summary_of(batch.loss_scale_at));
}

BatchContext samples_of(const BatchContext& batch, int64_t first, int64_t count) {
  check_batch(batch);
  TITAN_CHECK(first >= 0 && count >= 0 && first + count <= batch.tokens.size(0), first, count,
              summary_of(batch.tokens));
  BatchContext part;
  part.tokens = batch.tokens.narrow(0, first, count);
  part.labels = batch.labels.narrow(0, first, count);
  if (batch.positions.defined()) {
    const bool shared = batch.positions.size(0) == 1;
    part.positions = shared ? batch.positions : batch.positions.narrow(0, first, count);
  }
  const std::vector<DocumentStarts>& starts = batch.bounds.document_starts;
  if (!starts.empty()) part.bounds.document_starts.assign(starts.begin() + first, starts.begin() + first + count);
  part.loss_scale = batch.loss_scale;
  part.loss_scale_at = batch.loss_scale_at;
  return part;
}

Parameter& Model::parameter(std::string_view name) const {
  for (const auto& parameter : parameters_by_order_) {
    if (parameter->name() == name) return *parameter;
  }
  throw InvariantError(fmt::format("internal error: the model has no parameter {}", name));
}

Parameter& Model::add_parameter(const ParameterSpec& spec) {
  parameters_by_order_.push_back(std::make_unique<Parameter>(spec));
  return *parameters_by_order_.back();
}

std::span<const ModelFamily* const> model_families() {
  static const std::array<const ModelFamily*, 2> families{&llama_family(), &qwen_family()};
  return families;
}

const ModelFamily* find_model_family(std::string_view name) {
  for (const ModelFamily* family : model_families()) {
    const std::vector<std::string> names = family->names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return family;
  }
  return nullptr;
}

const StateDictAdapter* find_state_dict_adapter(std::string_view name) {
  const ModelFamily* family = find_model_family(name);
  return family ? family->adapter() : nullptr;
}

}  // namespace titan
