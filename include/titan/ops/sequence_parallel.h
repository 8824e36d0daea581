// Sequence parallelism between tensor-parallel ranks: the residual stream is sharded by tokens, the matrices by
// features. Rows are all-gathered before a product that reads the stream, partial sums are reduce-scattered after one
// that writes it. Rank r holds tokens [r·n, (r+1)·n) of a microbatch's B·T, row-major; all ranks hold equally many.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>

#include "titan/distributed/communicator.h"
#include "titan/distributed/peer_memory.h"

namespace titan {

/// The caller of either direction passes a function that computes a range of rows, so that an implementation can
/// overlap communication with the caller's products. Plain implementations call it once, with all rows. All ranks call
/// in the same order.
class SequenceParallel {
 public:
  virtual ~SequenceParallel() = default;
  virtual int64_t ranks() const = 0;

  /// `consume(first, rows)` receives every row of the gathered [n·ranks, D] exactly once; `first` is the index of its
  /// first row. `shard` [n, D]: this rank's rows.
  using Consume = std::function<void(int64_t first, const at::Tensor& rows)>;
  virtual void gather(const at::Tensor& shard, const Consume& consume) const = 0;

  /// Returns this rank's rows [n, D] of the sum over ranks of partial [n·ranks, D]; `produce(first, count)` returns
  /// rows of partial.
  using Produce = std::function<at::Tensor(int64_t first, int64_t count)>;
  virtual at::Tensor scatter_sum(int64_t rows, const Produce& produce) const = 0;
};

/// One all-gather or one reduce-scatter, without overlap.
std::shared_ptr<const SequenceParallel> make_collective_sequence_parallel(std::shared_ptr<Communicator> communicator);

/// Called on the caller's thread when a chunk's transfer ("read", "write") or product ("multiply") is enqueued.
/// Only tests set it.
using ExchangeTrace = std::function<void(const char* what, int64_t chunk)>;

/// In chunks through peer memory, whose capacity is twice the gathered stream: one chunk is transferred while the
/// caller multiplies another. Sums are fp32, in rank order.
std::shared_ptr<const SequenceParallel> make_async_sequence_parallel(std::shared_ptr<PeerMemory> memory,
                                                                     ExchangeTrace trace = {});

/// What operations need for tensor parallelism; null means a single rank.
struct TensorParallel {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<const SequenceParallel> exchange;
  /// Compute the loss on vocabulary shards; otherwise gather the logits first.
  bool loss_parallel = true;
};

at::Tensor gather_rows(const SequenceParallel& exchange, const at::Tensor& shard);
at::Tensor scatter_rows(const SequenceParallel& exchange, const at::Tensor& partial);

}  // namespace titan
