#include "titan/parallel/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"
#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

at::Tensor part_of(at::Tensor matrix, const Box& box) {
  for (size_t d = 0; d < box.extent.size(); ++d) {
    matrix = matrix.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return matrix;
}

}  // namespace

MatrixExchange::MatrixExchange(const Plan& plan, const WeightGroupPlan& group,
                               std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {
  TITAN_CHECK(communicator_ && communicator_->size() == ranks_of(plan, group.matrix_communicator), group.name);
  for (const WholeMatrix& matrix : group.matrices) {
    matrices_.push_back({matrix.owner, matrix_parts(plan, group, matrix), group.parameters[matrix.parameter].spec.shape,
                         scalar_type(plan.request.updates[group.parameters[matrix.parameter].update].matrix_type)});
    if (matrices_.back().is_owned()) owned_.push_back(parameters_.size());
    parameters_.push_back(matrix.parameter);
  }
  wholes_.resize(matrices_.size());
  updates_.resize(matrices_.size());
}

void MatrixExchange::start(const std::vector<std::pair<int64_t, Arrival>>& receives,
                           const std::vector<std::pair<int64_t, at::Tensor>>& sends) {
  TITAN_CHECK(!pending_ && arriving_.empty());
  // One message for each peer. Both sides list its tensors in the order of the matrices, so they match.
  std::map<int64_t, Message> from, to;
  for (const auto& [peer, arrival] : receives) {
    Message& message = from.try_emplace(peer, Message{peer, {}}).first->second;
    message.tensors.push_back(arrival.part);
    arriving_.push_back(arrival);
  }
  for (const auto& [peer, part] : sends) {
    Message& message = to.try_emplace(peer, Message{peer, {}}).first->second;
    message.tensors.push_back(part.contiguous());
    sent_.push_back(message.tensors.back());
  }
  const auto messages = [](const std::map<int64_t, Message>& by_peer) {
    std::vector<Message> all;
    for (const auto& [peer, message] : by_peer) all.push_back(message);
    return all;
  };
  pending_ = communicator_->transfer(messages(from), messages(to));
}

void MatrixExchange::start_collect(std::vector<at::Tensor> parts) {
  TITAN_CHECK(parts.size() == matrices_.size(), parts.size(), matrices_.size());
  own_parts_ = std::move(parts);
  std::vector<std::pair<int64_t, Arrival>> receives;
  std::vector<std::pair<int64_t, at::Tensor>> sends;
  for (size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = matrices_[m];
    TITAN_CHECK(own_parts_[m].defined() && own_parts_[m].sizes() == at::IntArrayRef(matrix.own().extent) &&
                    own_parts_[m].scalar_type() == matrix.type,
                m, summary_of(own_parts_[m]), matrix.own().extent, c10::toString(matrix.type));
    if (!matrix.is_owned()) {
      if (matrix.parts.sends[static_cast<size_t>(matrix.parts.own)]) sends.emplace_back(matrix.owner, own_parts_[m]);
      continue;
    }
    wholes_[m] = at::empty(matrix.shape, own_parts_[m].options());
    part_of(wholes_[m], matrix.own()).copy_(own_parts_[m]);
    for (size_t member = 0; member < matrix.parts.boxes.size(); ++member) {
      if (!matrix.parts.sends[member]) continue;
      const Box& box = matrix.parts.boxes[member];
      const at::Tensor place = part_of(wholes_[m], box);
      // Rows of the matrix arrive where they belong; columns, in memory apart, are copied there.
      receives.emplace_back(member, Arrival{m, box, place.is_contiguous() ? place : at::empty_like(place)});
    }
  }
  start(receives, sends);
  device_ = own_parts_[0].device();
  own_parts_.clear();
}

std::vector<at::Tensor> MatrixExchange::wait_collect() {
  pending_->wait();
  pending_.reset();
  for (const Arrival& arrival : arriving_) {
    const at::Tensor place = part_of(wholes_[arrival.matrix], arrival.box);
    if (!place.is_contiguous()) place.copy_(arrival.part);
  }
  arriving_.clear();
  sent_.clear();
  std::vector<at::Tensor> matrices;
  for (const size_t m : owned_) matrices.push_back(std::move(wholes_[m]));
  return matrices;
}

void MatrixExchange::start_return(std::vector<at::Tensor> updates) {
  TITAN_CHECK(updates.size() == owned_.size(), updates.size(), owned_.size());
  std::vector<std::pair<int64_t, Arrival>> receives;
  std::vector<std::pair<int64_t, at::Tensor>> sends;
  for (size_t m = 0, next = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = matrices_[m];
    const at::TensorOptions options = at::TensorOptions(device_).dtype(matrix.type);
    if (!matrix.is_owned()) {
      updates_[m] = at::empty(matrix.own().extent, options);
      if (matrix.own().numel() > 0) receives.emplace_back(matrix.owner, Arrival{m, matrix.own(), updates_[m]});
      continue;
    }
    const at::Tensor& update = updates[next++];
    TITAN_CHECK(update.defined() && update.sizes() == at::IntArrayRef(matrix.shape) &&
                    update.scalar_type() == matrix.type && update.device() == device_,
                m, summary_of(update), matrix.shape, c10::toString(matrix.type));
    // A copy, so that the whole is freed; of replicas the part is the whole.
    const at::Tensor own = part_of(update, matrix.own());
    updates_[m] = own.numel() == update.numel() ? update : own.clone(at::MemoryFormat::Contiguous);
    std::vector<std::pair<Box, at::Tensor>> made;  // ranks that hold the same get one copy of it
    for (size_t member = 0; member < matrix.parts.boxes.size(); ++member) {
      const Box& box = matrix.parts.boxes[member];
      if (static_cast<int64_t>(member) == matrix.parts.own || box.numel() == 0) continue;
      auto same = std::find_if(made.begin(), made.end(), [&](const auto& one) { return one.first == box; });
      if (same == made.end()) same = made.insert(made.end(), {box, part_of(update, box).contiguous()});
      sends.emplace_back(member, same->second);
    }
  }
  start(receives, sends);
}

std::vector<at::Tensor> MatrixExchange::wait_return() {
  pending_->wait();
  pending_.reset();
  arriving_.clear();
  sent_.clear();
  std::vector<at::Tensor> parts(matrices_.size());
  std::swap(parts, updates_);
  return parts;
}

}  // namespace titan
