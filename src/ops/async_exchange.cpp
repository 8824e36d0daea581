// Async tensor parallelism: the stream crosses in chunks of one rank's tokens through peer memory, one chunk travelling
// while the caller multiplies another; no collective call is in the path. Every exchange has a number, the same on all
// ranks; buffers alternate between two banks, and a bank is written again only when every rank is done with what was in
// it two exchanges ago.
#include <ATen/ATen.h>

#include <future>

#include "titan/base/error.h"
#include "titan/ops/token_exchange.h"

namespace titan {
namespace {

constexpr int kReady = 0;  // "what you wait for is in the buffer"
constexpr int kDone = 1;   // "I have read all I wanted of this exchange"

class AsyncExchange : public TokenExchange {
 public:
  AsyncExchange(std::shared_ptr<PeerMemory> memory, ExchangeTrace trace)
      : memory_(std::move(memory)), trace_(std::move(trace)), state_(std::make_unique<State>()) {}

  int64_t ranks() const override { return memory_->size(); }

  void gather(const at::Tensor& shard, const Consume& consume) const override {
    const uint64_t exchange = begin(static_cast<int64_t>(shard.nbytes()));
    own_region(exchange, shard.sizes(), shard.scalar_type()).copy_(shard);
    for_peers([&](int64_t peer) { memory_->signal(peer, kReady); });
    auto read = [&](int64_t peer) {
      note("read", peer);
      return std::async(std::launch::async, [this, exchange, peer, &shard] {
        memory_->wait(peer, kReady, exchange);
        return region(peer, exchange, 0, shard.sizes(), shard.scalar_type()).clone();
      });
    };
    const int64_t rows = shard.size(0);
    std::future<at::Tensor> next;
    for (int64_t i = 0; i < ranks(); ++i) {
      const int64_t owner = (memory_->rank() + i) % ranks();
      const at::Tensor chunk = i == 0 ? shard : next.get();
      if (i + 1 < ranks()) next = read((owner + 1) % ranks());
      note("multiply", owner);
      consume(owner * rows, chunk);
    }
    end();
  }

  at::Tensor scatter_sum(int64_t rows, const Produce& produce) const override {
    TITAN_CHECK(rows % ranks() == 0, rows, ranks());
    const int64_t each = rows / ranks();
    const int64_t rank = memory_->rank();
    std::future<void> sent;
    uint64_t exchange = 0;
    at::Tensor mine;
    for (int64_t i = 1; i <= ranks(); ++i) {
      const int64_t owner = (rank + i) % ranks();
      note("multiply", owner);
      at::Tensor part = produce(owner * each, each);
      if (exchange == 0) exchange = begin(static_cast<int64_t>(part.nbytes()) * ranks());
      if (sent.valid()) sent.get();
      if (owner == rank) {
        mine = std::move(part);
        break;
      }
      note("write", owner);
      sent = std::async(std::launch::async, [this, exchange, owner, rank, part] {
        region(owner, exchange, rank, part.sizes(), part.scalar_type()).copy_(part);
        memory_->signal(owner, kReady);
      });
    }
    at::Tensor sum = sum_of_parts(mine, exchange);
    end();
    return sum;
  }

 private:
  struct State {
    uint64_t exchanges = 0;
  };

  uint64_t begin(int64_t bytes) const {
    TITAN_CHECK(2 * bytes <= memory_->capacity(), bytes, memory_->capacity());
    const uint64_t exchange = ++state_->exchanges;
    for_peers([&](int64_t peer) { memory_->wait(peer, kDone, exchange >= 2 ? exchange - 2 : 0); });
    return exchange;
  }
  void end() const {
    for_peers([&](int64_t peer) { memory_->signal(peer, kDone); });
  }

  /// Parts of all ranks in rank order, added in fp32 and rounded once.
  at::Tensor sum_of_parts(const at::Tensor& mine, uint64_t exchange) const {
    at::Tensor sum;
    for (int64_t from = 0; from < ranks(); ++from) {
      at::Tensor part = mine;
      if (from != memory_->rank()) {
        memory_->wait(from, kReady, exchange);
        part = region(memory_->rank(), exchange, from, mine.sizes(), mine.scalar_type());
      }
      sum = sum.defined() ? sum.add_(part) : part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
    return sum.to(mine.scalar_type());
  }

  at::Tensor own_region(uint64_t exchange, at::IntArrayRef shape, at::ScalarType type) const {
    return region(memory_->rank(), exchange, 0, shape, type);
  }
  /// Chunk `slot` of this exchange's bank in the buffer of `owner`.
  at::Tensor region(int64_t owner, uint64_t exchange, int64_t slot, at::IntArrayRef shape, at::ScalarType type) const {
    const int64_t bank = static_cast<int64_t>(exchange % 2) * (memory_->capacity() / 2);
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

std::shared_ptr<const TokenExchange> make_async_exchange(std::shared_ptr<PeerMemory> memory, ExchangeTrace trace) {
  return std::make_shared<AsyncExchange>(std::move(memory), std::move(trace));
}

}  // namespace titan
