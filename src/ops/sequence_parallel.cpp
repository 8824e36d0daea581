#include "titan/ops/sequence_parallel.h"

#include <ATen/ATen.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <utility>

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

class CollectiveExchange : public SequenceParallel {
 public:
  explicit CollectiveExchange(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  int64_t ranks() const override { return communicator_->size(); }

  void gather(const at::Tensor& shard, const Consume& consume) const override {
    at::Tensor rows = at::empty({shard.size(0) * ranks(), shard.size(1)}, shard.options());
    communicator_->all_gather({rows}, {shard.contiguous()})->wait();
    consume(0, rows);
  }

  at::Tensor scatter_sum(int64_t rows, const Produce& produce) const override {
    TITAN_CHECK(rows % ranks() == 0, rows, ranks());
    at::Tensor partial = produce(0, rows).contiguous();
    at::Tensor mine = at::empty({rows / ranks(), partial.size(1)}, partial.options());
    communicator_->reduce_scatter({mine}, {partial})->wait();
    return mine;
  }

 private:
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace

std::shared_ptr<const SequenceParallel> make_collective_sequence_parallel(std::shared_ptr<Communicator> communicator) {
  return std::make_shared<CollectiveExchange>(std::move(communicator));
}

at::Tensor gather_rows(const SequenceParallel& exchange, const at::Tensor& shard) {
  TITAN_CHECK(shard.defined() && shard.dim() == 2, summary_of(shard));
  at::Tensor whole;
  exchange.gather(shard, [&](int64_t first, const at::Tensor& rows) {
    const int64_t all = shard.size(0) * exchange.ranks();
    if (rows.size(0) == all) {
      whole = rows;
      return;
    }
    if (!whole.defined()) whole = at::empty({all, shard.size(1)}, shard.options());
    whole.narrow(0, first, rows.size(0)).copy_(rows);
  });
  return whole;
}

at::Tensor scatter_rows(const SequenceParallel& exchange, const at::Tensor& partial) {
  TITAN_CHECK(partial.defined() && partial.dim() == 2 && partial.size(0) % exchange.ranks() == 0, summary_of(partial),
              exchange.ranks());
  return exchange.scatter_sum(partial.size(0),
                              [&](int64_t first, int64_t count) { return partial.narrow(0, first, count); });
}

// Async tensor parallelism: the stream is exchanged through peer memory in chunks of one rank's tokens; one chunk is
// transferred while the caller multiplies another, without collectives. Exchanges are numbered equally on all ranks.
// Buffers and signals alternate between two banks; a bank is rewritten only after every rank has finished the exchange
// two before.

namespace {

/// One exchange: its bank, and how often the bank has been used, including this time.
struct Exchange {
  int bank = 0;
  uint64_t use = 0;

  int ready() const { return bank; }     // channel: "the data is in the buffer"
  int done() const { return 2 + bank; }  // channel: "this rank has finished reading"
};
static_assert(kPeerChannels == 4);

class AsyncSequenceParallel : public SequenceParallel {
 public:
  AsyncSequenceParallel(std::shared_ptr<PeerMemory> memory, ExchangeTrace trace)
      : memory_(std::move(memory)), trace_(std::move(trace)), state_(std::make_unique<State>()) {}

  int64_t ranks() const override { return memory_->size(); }

  void gather(const at::Tensor& shard, const Consume& consume) const override {
    const Exchange exchange = begin(static_cast<int64_t>(shard.nbytes()));
    region(memory_->rank(), exchange, 0, shard.sizes(), shard.scalar_type()).copy_(shard);
    for_peers([&](int64_t peer) { memory_->signal(peer, exchange.ready()); });
    const int64_t rows = shard.size(0);
    at::Tensor chunk = shard, next;
    Pending reading;
    for (int64_t i = 0; i < ranks(); ++i) {
      const int64_t owner = (memory_->rank() + i) % ranks();
      if (i > 0) {
        reading->wait();
        chunk = std::exchange(next, at::Tensor());
      }
      if (i + 1 < ranks()) {
        next = at::empty_like(shard);
        reading = read((owner + 1) % ranks(), exchange, next);
      }
      note("multiply", owner);
      consume(owner * rows, chunk);
    }
    end(exchange);
  }

  at::Tensor scatter_sum(int64_t rows, const Produce& produce) const override {
    TITAN_CHECK(rows % ranks() == 0, rows, ranks());
    const int64_t each = rows / ranks();
    const int64_t rank = memory_->rank();
    Exchange exchange;
    Pending writing;
    at::Tensor mine;
    for (int64_t i = 1; i <= ranks(); ++i) {
      const int64_t owner = (rank + i) % ranks();
      note("multiply", owner);
      at::Tensor part = produce(owner * each, each);
      if (exchange.use == 0) exchange = begin(static_cast<int64_t>(part.nbytes()) * ranks());
      if (writing) writing->wait();
      if (owner == rank) {
        mine = std::move(part);
        break;
      }
      note("write", owner);
      writing = memory_->beside([this, exchange, owner, rank, part] {
        region(owner, exchange, rank, part.sizes(), part.scalar_type()).copy_(part);
        memory_->signal(owner, exchange.ready());
      });
    }
    at::Tensor sum = sum_of_parts(mine, exchange);
    end(exchange);
    return sum;
  }

 private:
  struct State {
    uint64_t exchanges = 0;
  };

  Exchange begin(int64_t bytes) const {
    TITAN_CHECK(2 * bytes <= memory_->capacity(), bytes, memory_->capacity());
    const uint64_t number = state_->exchanges++;
    const Exchange exchange{static_cast<int>(number % 2), number / 2 + 1};
    if (exchange.use > 1) {
      for_peers([&](int64_t peer) { memory_->wait(peer, exchange.done(), exchange.use - 1); });
    }
    return exchange;
  }
  void end(const Exchange& exchange) const {
    for_peers([&](int64_t peer) { memory_->signal(peer, exchange.done()); });
  }

  /// Starts the transfer of `peer`'s chunk to `target`.
  Pending read(int64_t peer, const Exchange& exchange, const at::Tensor& target) const {
    note("read", peer);
    return memory_->beside([this, exchange, peer, target] {
      memory_->wait(peer, exchange.ready(), exchange.use);
      target.copy_(region(peer, exchange, 0, target.sizes(), target.scalar_type()));
    });
  }

  /// Partial sums of all ranks in rank order, added in fp32 and rounded once.
  at::Tensor sum_of_parts(const at::Tensor& mine, const Exchange& exchange) const {
    at::Tensor sum;
    for (int64_t from = 0; from < ranks(); ++from) {
      at::Tensor part = mine;
      if (from != memory_->rank()) {
        memory_->wait(from, exchange.ready(), exchange.use);
        part = region(memory_->rank(), exchange, from, mine.sizes(), mine.scalar_type());
      }
      sum = sum.defined() ? sum.add_(part) : part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
    return sum.to(mine.scalar_type());
  }

  /// Chunk `slot` of this exchange's bank in `owner`'s buffer.
  at::Tensor region(int64_t owner, const Exchange& exchange, int64_t slot, at::IntArrayRef shape,
                    at::ScalarType type) const {
    const int64_t bank = exchange.bank * (memory_->capacity() / 2);
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    return memory_->view(owner, bank + slot * bytes, shape, type);
  }

  template <class Do>
  void for_peers(const Do& visit) const {
    for (int64_t peer = 0; peer < ranks(); ++peer) {
      if (peer != memory_->rank()) visit(peer);
    }
  }
  void note(const char* what, int64_t chunk) const {
    if (trace_) trace_(what, chunk);
  }

  std::shared_ptr<PeerMemory> memory_;
  ExchangeTrace trace_;
  std::unique_ptr<State> state_;
};

}  // namespace

std::shared_ptr<const SequenceParallel> make_async_sequence_parallel(std::shared_ptr<PeerMemory> memory,
                                                                     ExchangeTrace trace) {
  return std::make_shared<AsyncSequenceParallel>(std::move(memory), std::move(trace));
}

}  // namespace titan
