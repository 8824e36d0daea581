#include "titan/model/unit.h"

namespace titan {

BatchContext samples_of(const BatchContext& batch, int64_t first, int64_t count) {
  BatchContext part;
  part.tokens = batch.tokens.narrow(0, first, count);
  part.labels = batch.labels.narrow(0, first, count);
  if (batch.positions.defined()) {
    const bool shared = batch.positions.size(0) == 1;  // the same for all samples
    part.positions = shared ? batch.positions : batch.positions.narrow(0, first, count);
  }
  const std::vector<DocumentStarts>& starts = batch.bounds.document_starts;
  if (!starts.empty()) part.bounds.document_starts.assign(starts.begin() + first, starts.begin() + first + count);
  part.loss_scale = batch.loss_scale;
  part.loss_scale_at = batch.loss_scale_at;
  return part;
}

}  // namespace titan
