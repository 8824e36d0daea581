// Brings matrices whose updates are computed as a whole to the ranks that compute them, and the updates back: the
// messages of COLLECT and TRANSFORM of one weight group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/plan/plan.h"

namespace titan {

class MatrixExchange {
 public:
  /// `communicator`: the group's matrix_communicator.
  MatrixExchange(const Plan& plan, const WeightGroupPlan& group, std::shared_ptr<Communicator> communicator);

  /// The matrices of the group: indices into its parameters, and which of them this rank owns, as indices into these.
  const std::vector<size_t>& parameters() const { return parameters_; }
  const std::vector<size_t>& owned() const { return owned_; }

  /// Starts to send `parts`, this rank's part of each matrix [rows, columns of its shard].
  void start_collect(std::vector<at::Tensor> parts);
  /// The whole matrices that this rank owns, in the order of `owned`.
  std::vector<at::Tensor> wait_collect();
  /// Starts to send the parts of `updates` [rows, columns], one of each matrix in `owned`.
  void start_return(std::vector<at::Tensor> updates);
  /// This rank's part of the update of each matrix.
  std::vector<at::Tensor> wait_return();

 private:
  struct Matrix {
    int64_t owner;
    MatrixParts parts;
    std::vector<int64_t> shape;
    at::ScalarType type;  // in which it is sent
    const Box& own() const { return parts.boxes[static_cast<size_t>(parts.own)]; }
    bool is_owned() const { return owner == parts.own; }
  };
  /// A part on its way: where it belongs.
  struct Arrival {
    size_t matrix;
    Box box;
    at::Tensor part;  // [rows, columns] of the box
  };
  /// One message to or from each peer that has parts for this rank or gets some of it.
  void start(const std::vector<std::pair<int64_t, Arrival>>& receives,
             const std::vector<std::pair<int64_t, at::Tensor>>& sends);

  std::vector<Matrix> matrices_;
  std::vector<size_t> parameters_, owned_;
  std::shared_ptr<Communicator> communicator_;
  Pending pending_;
  std::vector<at::Tensor> own_parts_;  // by matrix [rows, columns of its shard], until they are sent
  std::vector<at::Tensor> wholes_;     // by matrix [rows, columns]: what this rank owns, while parts arrive
  std::vector<at::Tensor> updates_;    // by matrix [rows, columns of its shard]: this rank's part
  std::vector<Arrival> arriving_;
  std::vector<at::Tensor> sent_;  // parts of any shapes, kept until they have arrived
  at::Device device_{at::kCPU};
};

}  // namespace titan
