// Peer memory of a dry run: shapes and bytes are real, peers are not.
#include <ATen/ops/zeros.h>

#include "titan/base/error.h"
#include "titan/distributed/peer_memory.h"

namespace titan {
namespace {

struct Done : PendingCollective {
  void wait() override {}
};

class FakePeerMemory : public PeerMemory {
 public:
  FakePeerMemory(int64_t rank, int64_t size, int64_t capacity, const at::Device& device)
      : rank_(rank), size_(size), memory_(at::zeros({capacity}, at::TensorOptions(device).dtype(at::kByte))) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  int64_t capacity() const override { return memory_.numel(); }

  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(type));
    TITAN_CHECK(owner >= 0 && owner < size_, owner, size_);
    return memory_.narrow(0, offset, bytes).view(type).view(shape);
  }

  void signal(int64_t, int) override {}
  void wait(int64_t, int, uint64_t) override {}
  void set_timeout(std::chrono::milliseconds) override {}

  Pending beside(std::function<void()> transfer) override {
    transfer();
    return std::make_unique<Done>();
  }

 private:
  int64_t rank_;
  int64_t size_;
  at::Tensor memory_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_fake_peer_memory(int64_t rank, int64_t size, int64_t capacity,
                                                  const at::Device& device) {
  return std::make_unique<FakePeerMemory>(rank, size, capacity, device);
}

}  // namespace titan
