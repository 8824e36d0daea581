#include "titan/distributed/communicator_members.h"

#include "titan/base/error.h"

namespace titan {

void CommunicatorMembers::fail_silent(int64_t peer, std::chrono::milliseconds timeout) const {
  const int64_t rank = run_rank(peer);
  throw Error(ExitCode::peer_failure,
              fmt::format("communication through communicator {} failed ({} sent nothing for {:g} s); another rank has "
                          "ended or does not "
                          "answer",
                          communicator, rank >= 0 ? fmt::format("rank {}", rank) : fmt::format("its rank {}", peer),
                          std::chrono::duration<double>(timeout).count()));
}

WaitForGraph::Ranks CommunicatorMembers::others(int64_t own) const {
  if (!waits || ranks.empty()) return nullptr;
  auto found = std::make_shared<std::vector<int64_t>>(ranks);
  found->erase(found->begin() + own);
  return found;
}

std::function<bool()> CommunicatorMembers::noted(WaitForGraph::Ranks ranks, std::function<bool()> is_complete) const {
  if (!ranks) return is_complete;
  waits->begin(ranks);
  return [waits = waits, ranks = std::move(ranks), is_complete = std::move(is_complete)] {
    try {
      if (!is_complete()) return false;
    } catch (...) {
      waits->keep();
      throw;
    }
    waits->end(ranks);
    return true;
  };
}

namespace {

class NotingPeerMemory : public PeerMemory {
 public:
  NotingPeerMemory(std::unique_ptr<PeerMemory> memory, CommunicatorMembers members)
      : memory_(std::move(memory)), members_(std::move(members)) {}
  int64_t rank() const override { return memory_->rank(); }
  int64_t size() const override { return memory_->size(); }
  int64_t capacity() const override { return memory_->capacity(); }
  at::Tensor view(int64_t owner, int64_t offset, at::IntArrayRef shape, at::ScalarType type) override {
    return memory_->view(owner, offset, shape, type);
  }
  void signal(int64_t peer, int channel) override { memory_->signal(peer, channel); }
  void wait(int64_t peer, int channel, uint64_t count) override {
    members_.wait_for(peer, [&] {
      memory_->wait(peer, channel, count);
      return true;
    });
  }
  void set_timeout(std::chrono::milliseconds timeout) override { memory_->set_timeout(timeout); }
  Pending beside(std::function<void()> transfer) override { return memory_->beside(std::move(transfer)); }

 private:
  std::unique_ptr<PeerMemory> memory_;
  CommunicatorMembers members_;
};

}  // namespace

std::unique_ptr<PeerMemory> noting(std::unique_ptr<PeerMemory> memory, CommunicatorMembers members) {
  return std::make_unique<NotingPeerMemory>(std::move(memory), std::move(members));
}

}  // namespace titan
