#include "titan/checkpoint/load_plan.h"

#include <algorithm>
#include <optional>

#include "shape_text.h"

namespace titan {
namespace {

/// What two boxes have in common; nothing where that is empty.
std::optional<Box> common(const Box& a, const Box& b) {
  Box both;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (end <= begin) return std::nullopt;
    both.offset.push_back(begin);
    both.extent.push_back(end - begin);
  }
  return both;
}

Box relative_to(Box box, const Box& origin) {
  for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] -= origin.offset[d];
  return box;
}

/// Whether two boxes have an element in common. Only boxes whose first dimensions meet are compared: with rows cut over
/// thousands of ranks that are few.
bool overlap(std::vector<Box> boxes) {
  if (boxes.empty() || boxes[0].offset.empty()) return boxes.size() > 1;
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.offset[0] < b.offset[0]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i].offset[0] + boxes[i].extent[0];
    for (size_t j = i + 1; j < boxes.size() && boxes[j].offset[0] < end; ++j) {
      if (common(boxes[i], boxes[j])) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<PlannedRead> plan_load(const CheckpointIndex& index, const LogicalTensor& tensor, const Box& box) {
  const auto found = index.tensors.find(tensor.name);
  if (found == index.tensors.end()) throw MismatchError(fmt::format("it has no tensor {}", tensor.name));
  const StoredTensor& stored = found->second;
  if (stored.tensor.shape != tensor.shape) {
    throw MismatchError(fmt::format("its {} has shape {}, this model's has {}", tensor.name,
                                    shape_text(stored.tensor.shape), shape_text(tensor.shape)));
  }
  std::vector<PlannedRead> reads;
  std::vector<Box> parts;
  int64_t covered = 0;
  for (const StoredChunk& chunk : stored.chunks) {
    const std::optional<Box> part = common(chunk.box, box);
    if (!part) continue;
    parts.push_back(*part);
    covered += part->numel();
    reads.push_back({chunk.place, relative_to(*part, chunk.box), relative_to(*part, box), chunk.box.extent});
  }
  if (overlap(std::move(parts))) throw DamageError(fmt::format("chunks of {} overlap", tensor.name));
  if (covered != box.numel()) throw DamageError(fmt::format("chunks of {} leave a part of it out", tensor.name));
  std::sort(reads.begin(), reads.end(), [](const PlannedRead& a, const PlannedRead& b) {
    return std::tie(a.place.file, a.place.offset) < std::tie(b.place.file, b.place.offset);
  });
  return reads;
}

}  // namespace titan
