// Where the residual stream, whose tokens are dealt out over the ranks of a tensor-parallel group, meets matrices whose
// features are: rows are gathered before a product that reads the stream, partial sums are scattered after one that
// writes it. Rank r holds tokens [r·n, (r+1)·n) of a microbatch's B·T, row-major: every rank the same number.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <memory>

#include "titan/distributed/communicator.h"
#include "titan/distributed/peer_memory.h"

namespace titan {

/// Both directions in a form that lets an implementation overlap communication with the caller's products: the caller
/// hands over what to do with a run of rows, the implementation says when. Plain implementations call it once with all
/// rows. Calls are made in the same order on all ranks.
class SequenceParallel {
 public:
  virtual ~SequenceParallel() = default;
  virtual int64_t ranks() const = 0;

  /// `consume(first, rows)` sees every row of the gathered [n·ranks, D] exactly once, `first` being the number of the
  /// first one; `shard` [n, D] are this rank's.
  using Consume = std::function<void(int64_t first, const at::Tensor& rows)>;
  virtual void gather(const at::Tensor& shard, const Consume& consume) const = 0;

  /// This rank's rows [n, D] of the sum over ranks of partial [n·ranks, D], of which `produce(first, count)` makes
  /// rows.
  using Produce = std::function<at::Tensor(int64_t first, int64_t count)>;
  virtual at::Tensor scatter_sum(int64_t rows, const Produce& produce) const = 0;
};

/// One all-gather, one reduce-scatter: nothing overlaps.
std::shared_ptr<const SequenceParallel> make_collective_sequence_parallel(std::shared_ptr<Communicator> communicator);

/// Called on the caller's thread when a chunk's transfer ("read", "write") or product ("multiply") is issued; for
/// tests.
using ExchangeTrace = std::function<void(const char* what, int64_t chunk)>;

/// Chunk by chunk through peer memory, whose capacity is twice the gathered stream: one chunk travels while the caller
/// multiplies another. Sums are made in fp32, in rank order.
std::shared_ptr<const SequenceParallel> make_async_sequence_parallel(std::shared_ptr<PeerMemory> memory,
                                                                     ExchangeTrace trace = {});

/// What operations need to share every matrix with other ranks; operations that get none work alone.
struct TensorParallel {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<const SequenceParallel> exchange;
  /// The loss is computed on shards of the vocabulary; otherwise the logits are gathered first.
  bool loss_parallel = true;
};

/// All rows at once.
at::Tensor gather_rows(const SequenceParallel& exchange, const at::Tensor& shard);
at::Tensor scatter_rows(const SequenceParallel& exchange, const at::Tensor& partial);

}  // namespace titan
