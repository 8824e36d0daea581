#include "titan/ops/token_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "titan/base/error.h"

namespace titan {
namespace {

class CollectiveExchange : public TokenExchange {
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

std::shared_ptr<const TokenExchange> make_collective_exchange(std::shared_ptr<Communicator> communicator) {
  return std::make_shared<CollectiveExchange>(std::move(communicator));
}

at::Tensor gather_rows(const TokenExchange& exchange, const at::Tensor& shard) {
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

at::Tensor scatter_rows(const TokenExchange& exchange, const at::Tensor& partial) {
  return exchange.scatter_sum(partial.size(0),
                              [&](int64_t first, int64_t count) { return partial.narrow(0, first, count); });
}

}  // namespace titan
