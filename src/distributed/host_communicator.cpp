// Communication between ranks of one host through shared memory. When a collective is issued, each rank copies its
// message into a bank of its own; when the result is waited for, it copies from the banks of all ranks. There is no
// thread and no socket, one copy in each direction, and no rank waits for another rank's call to end. Operations of a
// communicator have the same numbers on all ranks and complete in order. A bank is reused once every rank has read its
// message of four operations ago.
#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <utility>

#include "host_mailbox.h"
#include "titan/base/error.h"
#include "titan/distributed/communicator.h"
#include "titan/distributed/communicator_members.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/distributed/peer_memory.h"

namespace titan {
namespace {

constexpr size_t kBanks = 4;  // calls in flight: a bank is written again when the call that used it is complete
constexpr int64_t kSmallestBank = 4096;  // bytes: shared memory comes in pages, so less would save nothing

/// One per rank, in shared memory.
struct RankCounters {
  SharedCounter issued;     // operations whose message is in the rank's bank
  SharedCounter completed;  // operations whose result the rank has copied out
};

using Store = c10::intrusive_ptr<c10d::Store>;

using Members = std::shared_ptr<const CommunicatorMembers>;

/// The value that rank `peer` of the communicator published under `key`. Throws Error(peer_failure) when it does not
/// come.
std::string heard(const Store& store, const std::string& key, const CommunicatorMembers& members, int64_t peer,
                  std::chrono::milliseconds timeout) {
  const bool came = members.wait_for(peer, [&] {
    try {
      store->wait({key}, timeout);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  });
  if (!came) members.fail_silent(peer, timeout);
  return store->get_to_str(key);
}

/// Shared memory for one message of every rank of the communicator.
class Bank {
 public:
  Bank(Store store, std::string key, const CommunicatorRequest& request, Members members)
      : store_(std::move(store)),
        key_(std::move(key)),
        members_(std::move(members)),
        rank_(request.rank),
        size_(request.size) {}

  /// Collective: makes room for `bytes` per rank. Older segments stay mapped while their messages are read.
  void reserve(int64_t bytes, std::chrono::milliseconds timeout) {
    if (bytes <= capacity_ && !segments_.empty()) return;
    capacity_ = std::max({bytes, 2 * capacity_, kSmallestBank});
    const std::string key = key_ + "/" + std::to_string(generation_++) + "/";
    segments_.assign(static_cast<size_t>(size_), nullptr);
    segments_[static_cast<size_t>(rank_)] =
        with_remedy("set comm.shared_memory = false: the ranks then communicate through sockets",
                    [&] { return SharedSegment::create(capacity_); });
    store_->set(key + std::to_string(rank_), segments_[static_cast<size_t>(rank_)]->address());
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      segments_[static_cast<size_t>(peer)] =
          SharedSegment::open(heard(store_, key + std::to_string(peer), *members_, peer, timeout));
    }
  }

  const std::vector<std::shared_ptr<SharedSegment>>& segments() const { return segments_; }

 private:
  Store store_;
  std::string key_;
  Members members_;
  int64_t rank_;
  int64_t size_;
  int64_t capacity_ = 0;
  int64_t generation_ = 0;
  std::vector<std::shared_ptr<SharedSegment>> segments_;  // by rank
};

/// A collective that is issued and not completed.
struct Operation {
  uint32_t number;
  std::vector<std::shared_ptr<SharedSegment>> messages;  // by rank
  std::function<void(const Operation&)> take_out;

  /// `rank`'s message as a tensor like `options`, from element `offset` on.
  at::Tensor message(int64_t rank, int64_t offset, at::IntArrayRef shape, const at::TensorOptions& options) const {
    char* data =
        messages[static_cast<size_t>(rank)]->data() + offset * static_cast<int64_t>(options.dtype().itemsize());
    return at::from_blob(data, shape, options);
  }
};

/// Reduces the messages in rank order, bitwise equal on every rank, into `result`. bf16 and fp16 are accumulated in
/// fp32 and rounded once.
void reduce(const std::vector<at::Tensor>& messages, Reduction reduction, const at::Tensor& result) {
  if (messages.size() == 1) {
    result.copy_(messages[0]);
    return;
  }
  const bool narrow = at::isReducedFloatingType(result.scalar_type());
  at::Tensor sum = narrow ? messages[0].to(at::kFloat) : result;
  for (size_t i = 1; i < messages.size(); ++i) {
    const at::Tensor& so_far = i == 1 && !narrow ? messages[0] : sum;
    switch (reduction) {
      case Reduction::sum:
        at::add_out(sum, so_far, messages[i]);
        break;
      case Reduction::max:
        at::maximum_out(sum, so_far, messages[i]);
        break;
      case Reduction::min:
        at::minimum_out(sum, so_far, messages[i]);
        break;
    }
  }
  if (narrow) result.copy_(sum);
}

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(const CommunicatorRequest& request, std::shared_ptr<SharedSegment> counters, const Store& store,
                   const std::string& key, Members members)
      : Communicator(request.name, request.rank, request.size),
        counters_(std::move(counters)),
        members_(std::move(members)),
        timeout_(request.timeout) {
    for (size_t bank = 0; bank < kBanks; ++bank) {
      banks_.emplace_back(store, key + "/bank" + std::to_string(bank), request, members_);
    }
    for (int64_t peer = 0; peer < size(); ++peer) {
      auto pair = [&](int64_t from, int64_t to) { return fmt::format("{}/from{}/to{}", key, from, to); };
      outboxes_.emplace_back(MailboxSide{ring(rank(), peer), store, pair(rank(), peer), members_, peer});
      inboxes_.emplace_back(MailboxSide{ring(peer, rank()), store, pair(peer, rank()), members_, peer});
    }
  }

  ~HostCommunicator() override {
    if (std::uncaught_exceptions() > 0) return;  // draining would wait for ranks that may be gone
    for (Outbox& outbox : outboxes_) outbox.drain(timeout_);
  }

  std::string_view transport() const override { return "shared memory"; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  /// Bytes of zeroed shared memory of a communicator: the counters of every rank, a ring for every pair.
  static int64_t shared_bytes(int64_t size) {
    return size * int64_t{sizeof(RankCounters)} + size * size * int64_t{sizeof(MailboxRing)};
  }

  /// Completes all operations up to `number`.
  void complete(uint32_t number) {
    while (!under_way_.empty() && static_cast<int32_t>(under_way_.front().number - number) <= 0) {
      const Operation operation = std::move(under_way_.front());
      under_way_.pop_front();
      for (int64_t i = 1; i < size(); ++i) await((rank() + i) % size(), &RankCounters::issued, operation.number + 1);
      operation.take_out(operation);
      of(rank()).completed.raise();
    }
  }

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    return issue(
        total_elements(inputs), inputs[0].options(), [&](const at::Tensor& bank) { pack(inputs, bank); },
        [ranks = size(), outputs](const Operation& operation) {
          int64_t offset = 0;
          for (const at::Tensor& output : outputs) {
            const int64_t each = output.numel() / ranks;
            at::Tensor rows = output.view({ranks, each});
            for (int64_t rank = 0; rank < ranks; ++rank) {
              rows[rank].copy_(operation.message(rank, offset, {each}, output.options()));
            }
            offset += each;
          }
        });
  }

  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    const int64_t share = total_elements(outputs);
    return issue(
        share * size(), inputs[0].options(),
        [&](const at::Tensor& bank) {
          int64_t offset = 0;
          for (const at::Tensor& input : inputs) {
            const int64_t each = input.numel() / size();
            bank.view({size(), share}).narrow(1, offset, each).copy_(input.view({size(), each}));
            offset += each;
          }
        },
        [rank = rank(), ranks = size(), share, outputs](const Operation& operation) {
          reduce_into(outputs, operation, ranks, rank * share, Reduction::sum);
        });
  }

  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    return issue(
        total_elements(tensors), tensors[0].options(), [&](const at::Tensor& bank) { pack(tensors, bank); },
        [ranks = size(), reduction, tensors](const Operation& operation) {
          reduce_into(tensors, operation, ranks, 0, reduction);
        });
  }

  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    for (const Message& message : sends) outboxes_[static_cast<size_t>(message.peer)].send(message.tensors, timeout_);
    auto pending = std::make_unique<MessagesPending>(*this);
    for (Message& message : receives) {
      const uint32_t number = inboxes_[static_cast<size_t>(message.peer)].expect(std::move(message.tensors));
      pending->expected.emplace_back(message.peer, number);
    }
    return pending;
  }

 private:
  struct MessagesPending : PendingCollective {
    explicit MessagesPending(HostCommunicator& communicator) : communicator(communicator) {}
    void wait() override {
      for (const auto& [peer, number] : std::exchange(expected, {})) {
        communicator.inboxes_[static_cast<size_t>(peer)].wait(number, communicator.timeout_);
      }
    }
    bool inputs_free() override { return true; }  // they were copied

    HostCommunicator& communicator;
    std::vector<std::pair<int64_t, uint32_t>> expected;
  };

  class HostPending : public PendingCollective {
   public:
    HostPending(HostCommunicator& communicator, uint32_t number) : communicator_(communicator), number_(number) {}
    void wait() override {
      if (std::exchange(waited_, true)) return;
      communicator_.complete(number_);
    }
    bool inputs_free() override { return true; }  // they were copied

   private:
    HostCommunicator& communicator_;
    uint32_t number_;
    bool waited_ = false;
  };

  template <class PutIn>
  Pending issue(int64_t numel, const at::TensorOptions& options, const PutIn& put_in,
                std::function<void(const Operation&)> take_out) {
    TITAN_CHECK(options.device().is_cpu(), name());
    const uint32_t number = issued_++;
    if (number >= kBanks) {
      complete(number - kBanks);
      for (int64_t i = 1; i < size(); ++i) {
        await((rank() + i) % size(), &RankCounters::completed, number - kBanks + 1);
      }
    }
    Bank& bank = banks_[number % kBanks];
    bank.reserve(numel * static_cast<int64_t>(options.dtype().itemsize()), timeout_);
    Operation operation{number, bank.segments(), std::move(take_out)};
    put_in(operation.message(rank(), 0, {numel}, options));
    of(rank()).issued.raise();
    under_way_.push_back(std::move(operation));
    return std::make_unique<HostPending>(*this, number);
  }

  static void reduce_into(const Tensors& outputs, const Operation& operation, int64_t ranks, int64_t offset,
                          Reduction reduction) {
    const int64_t numel = total_elements(outputs);
    std::vector<at::Tensor> messages;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      messages.push_back(operation.message(rank, offset, {numel}, outputs[0].options()));
    }
    const at::Tensor result = room_for(outputs);
    reduce(messages, reduction, result);
    unflatten(result, outputs);
  }

  MailboxRing* ring(int64_t from, int64_t to) const {
    char* rings = counters_->data() + size() * int64_t{sizeof(RankCounters)};
    return reinterpret_cast<MailboxRing*>(rings) + from * size() + to;
  }
  RankCounters& of(int64_t rank) const { return reinterpret_cast<RankCounters*>(counters_->data())[rank]; }

  void await(int64_t peer, SharedCounter RankCounters::*counter, uint32_t count) {
    SharedCounter& awaited = of(peer).*counter;
    if (awaited.reached(count)) return;
    if (members_->wait_for(peer, [&] { return awaited.wait_for(count, timeout_); })) return;
    const std::chrono::milliseconds waited = std::exchange(timeout_, {});  // other pending operations do not wait again
    members_->fail_silent(peer, waited);
  }

  std::shared_ptr<SharedSegment> counters_;
  Members members_;
  std::chrono::milliseconds timeout_;
  std::vector<Bank> banks_;
  std::vector<Outbox> outboxes_;  // by rank
  std::vector<Inbox> inboxes_;
  uint32_t issued_ = 0;
  std::deque<Operation> under_way_;
};

/// The counters, created by rank 0 and opened by the others. Throws Error(launcher) where that is impossible.
std::shared_ptr<SharedSegment> share_counters(const Store& store, const std::string& key,
                                              const CommunicatorRequest& request, const CommunicatorMembers& members) {
  if (request.rank == 0) {
    auto counters = SharedSegment::create(HostCommunicator::shared_bytes(request.size));
    store->set(key, counters->address());
    return counters;
  }
  const std::string address = heard(store, key, members, /*peer=*/0, request.timeout);
  if (address.empty()) throw Error(ExitCode::launcher, "the communicator's first rank has no memory to share");
  try {
    return SharedSegment::open(address);
  } catch (const Error& error) {
    if (error.code() != ExitCode::peer_failure) throw;
    // Memory is opened through the process's folder in /proc, which another container does not see.
    throw Error(ExitCode::launcher,
                "memory of the communicator's first rank cannot be opened: its process is not visible from this one");
  }
}

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const CommunicatorRequest& request, std::string& refusal) {
  const std::string key = "host_communicator/" + request.name + request.instance;
  const std::string ready = "ready";
  const auto members =
      std::make_shared<const CommunicatorMembers>(CommunicatorMembers{request.name, request.members, request.waits});
  std::shared_ptr<SharedSegment> counters;
  std::string answer = ready;
  try {
    counters = share_counters(store, key, request, *members);
  } catch (const Error& error) {
    if (error.code() == ExitCode::peer_failure) throw;
    answer = error.what();
    if (request.rank == 0) store->set(key, std::string());
  }
  // All members must choose alike, or they would wait for each other on different transports.
  store->set(key + "/answer/" + std::to_string(request.rank), answer);
  refusal.clear();
  for (int64_t member = 0; member < request.size; ++member) {
    const std::string asked = key + "/answer/" + std::to_string(member);
    if (std::string answer = heard(store, asked, *members, member, request.timeout); answer != ready)
      refusal = std::move(answer);
  }
  if (!refusal.empty()) return nullptr;
  return std::make_unique<HostCommunicator>(request, std::move(counters), store, key, members);
}

}  // namespace titan
