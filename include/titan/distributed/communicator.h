// Collectives among the ranks of one or several mesh axes. The base class counts the traffic of every backend,
// independently of the communication plan, so that tests can compare plan and counts. All members make the same calls
// in the same order; results are valid after `wait`.
#pragma once

#include <ATen/core/Tensor.h>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "titan/plan/collective.h"

namespace titan {

enum class Reduction : uint8_t { sum, max, min };

/// A collective in flight. If it is destroyed without `wait`, the outputs must not be read; they may be written until a
/// later call on the same communicator has been waited for.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  /// Orders the outputs before work that the caller enqueues next; on the CPU, blocks until they are complete. Throws
  /// Error(peer_failure) when the other ranks did not answer within the timeout. A second call does nothing.
  virtual void wait() = 0;
  /// True if the inputs may already be written or freed before `wait`. Never blocks.
  virtual bool inputs_free() { return false; }
};
using Pending = std::unique_ptr<PendingCollective>;

/// Peer of a permute that sends or receives nothing.
inline constexpr int64_t kNoRank = -1;

/// Tensors of one dtype and one device to a rank or from it: contiguous, and of the same sizes
/// on both sides.
struct Message {
  int64_t peer;
  std::vector<at::Tensor> tensors;  // of any shapes
};

class CollectiveTrace;

/// Seconds of a steady clock, by which computation and the waits within it are measured. Tests put a clock in its place
/// that other programs on the machine do not disturb.
double compute_time();

/// Host seconds that a rank has spent in collectives: starting them and waiting for them.
struct CollectiveTime {
  double seconds = 0;
};

class Communicator {
 public:
  Communicator(std::string name, int64_t rank, int64_t size) : name_(std::move(name)), rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  /// Position of this process in the communicator, and the communicator's size.
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // The tensors of a call are contiguous, of one dtype and one device; otherwise the call throws InvariantError before
  // anything is sent.

  /// outputs[i] [size·n, …] or [size, n, …]: all ranks' inputs[i] [n, …], one after the other. One call.
  [[nodiscard]] Pending all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);
  /// outputs[i] [n, …]: this rank's rows of the sum over ranks of inputs[i] [size·n, …] or [size, n, …]. One call.
  [[nodiscard]] Pending reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);
  /// Reduces every tensor, of any shape, over all ranks in place. One call.
  [[nodiscard]] Pending all_reduce(std::vector<at::Tensor> tensors, Reduction reduction = Reduction::sum);

  /// Point-to-point messages, as one call. The n-th message sent to a rank matches the n-th message that it receives
  /// from the sender, independently of how calls group them, so several calls may be in flight. Sent tensors
  /// must not be written before completion and must not share memory with received ones.
  [[nodiscard]] Pending transfer(std::vector<Message> receives, std::vector<Message> sends);
  /// Sends `inputs` to rank `to` and receives `outputs` from rank `from`, each of any shape, as in a Message. Either
  /// rank may be kNoRank, with an empty list.
  [[nodiscard]] Pending permute(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs, int64_t to,
                                int64_t from);

  /// Name of the transport: "shared memory", "Gloo", "NCCL", "nothing".
  virtual std::string_view transport() const = 0;
  /// Limit of every later call.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Waits for the calls in flight and closes the transport; no call may follow. All members call it, in the same order
  /// of communicators. If it is not called, the transport stays open until the process exits.
  virtual void shut_down() {}

  /// Records every later call in `trace`; null stops recording.
  void record_in(std::shared_ptr<CollectiveTrace> trace) { trace_ = std::move(trace); }
  /// Adds the time of every later call and wait to `time`, which belongs to the calling thread.
  void time_in(std::shared_ptr<CollectiveTime> time) { time_ = std::move(time); }

  const TrafficTable& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

 protected:
  using Tensors = std::vector<at::Tensor>;  // shapes as in the public calls, which have checked them
  virtual Pending start_all_gather(Tensors outputs, Tensors inputs) = 0;
  virtual Pending start_reduce_scatter(Tensors outputs, Tensors inputs) = 0;
  virtual Pending start_all_reduce(Tensors tensors, Reduction reduction) = 0;
  virtual Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) = 0;

 private:
  /// Counts and records the call that moves `whole` and is issued by `start`.
  template <class Start>
  Pending counted(Collective kind, const Tensors& whole, const Start& start);

  std::string name_;
  int64_t rank_;
  int64_t size_;
  TrafficTable traffic_{};
  std::shared_ptr<CollectiveTrace> trace_;
  std::shared_ptr<CollectiveTime> time_;
};

/// A communicator of one process that plays rank `rank` of `size`: shapes and memory are real, nothing is sent. What
/// others would send is zero, sums are this rank's own share.
std::unique_ptr<Communicator> make_fake_communicator(std::string name, int64_t rank, int64_t size);

// Several tensors as one flat message: for backends where one large call is cheaper than many small ones. Tensors of a
// list are contiguous, of one dtype and one device.

/// Σ n of `tensors`, each of any shape.
int64_t total_elements(const std::vector<at::Tensor>& tensors);

/// [Σ n]: the elements of `tensors` (any shapes), one tensor after the other. A view if the tensors are neighbours in
/// memory, else a copy.
at::Tensor flattened(const std::vector<at::Tensor>& tensors);

/// Copies `messages` [ranks, Σ nᵢ], one row from each rank, into outputs[i] [ranks·nᵢ]. An output gets its nᵢ elements
/// of rank 0's message, then those of rank 1's, and so on.
void unpack_rows(const at::Tensor& messages, const std::vector<at::Tensor>& outputs);

/// The inverse: inputs[i] [ranks·nᵢ] → [ranks, Σ nᵢ], one message for each rank. A view if there is one input.
at::Tensor pack_rows(const std::vector<at::Tensor>& inputs, int64_t ranks);

/// Copies the elements of `tensors` (any shapes), one tensor after the other, into `message` [Σ n or more].
void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& message);

/// [Σ n]: memory for a flat message that `unflatten` copies into `tensors` (any shapes). It is their own memory if they
/// are neighbours, and then nothing is copied.
at::Tensor room_for(const std::vector<at::Tensor>& tensors);

/// Copies `message` [Σ n or more] into `tensors` (any shapes), the inverse of `flattened`. An fp32 message is rounded
/// to bf16 or fp16 tensors: sums of narrow numbers are computed in fp32.
void unflatten(const at::Tensor& message, const std::vector<at::Tensor>& tensors);

}  // namespace titan
