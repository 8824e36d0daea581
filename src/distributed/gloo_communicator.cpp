// Gloo between CPUs. A list of tensors is packed into one message: on sockets a call costs more than a copy. A
// reduce-scatter is an all-to-all whose parts are added here in rank order: it sends half the bytes of Gloo's own (an
// all-reduce), and the order of the sum does not depend on the ring. An all-reduce in bf16 or fp16 is built from it, so
// that it too accumulates in fp32 and rounds once.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "titan/base/error.h"
#include "titan/distributed/communicator.h"
#include "titan/distributed/communicator_members.h"
#include "titan/distributed/mesh_communicators.h"

namespace titan {
namespace {

/// The first line of the exception's message, without the source location at its start.
std::string library_words(const std::exception& error) {
  std::string_view text(error.what());
  if (const size_t end = text.find("] "); text.starts_with('[') && end != std::string_view::npos)
    text.remove_prefix(end + 2);
  return std::string(text.substr(0, text.find('\n')));
}

/// Translates Gloo's exceptions to Error: the message names the communicator that waited; the abort watcher reports
/// which rank died.
template <class Call>
auto translated(const std::string& communicator, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::peer_failure,
        fmt::format("communication through communicator {} failed ({}); another rank has ended or does not answer",
                    communicator, library_words(error)));
  }
}

class GlooPending : public PendingCollective {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  /// `peers`: ranks of the communicator that it waits for. `limit`: of each wait; kNoTimeout uses that of the call.
  GlooPending(std::shared_ptr<const CommunicatorMembers> members, std::vector<int64_t> peers, Works works,
              std::function<void()> finish, std::chrono::milliseconds limit = kNoTimeout)
      : members_(std::move(members)),
        peers_(std::move(peers)),
        works_(std::move(works)),
        finish_(std::move(finish)),
        limit_(limit) {}
  ~GlooPending() override {
    try {
      wait();
    } catch (const Error&) {  // a caller that needs the result waits again, and gets the error there
    }
  }
  void wait() override {
    if (works_.empty()) return;
    const Works works = std::exchange(works_, {});
    const std::function<void()> finish = std::exchange(finish_, nullptr);
    members_->wait_for(peers_, [&] {
      for (const auto& work : works) translated(members_->communicator, [&] { return work->wait(limit_); });
      return true;
    });
    if (finish) finish();  // outside the watch: it is local work, so a hang in it is not another rank's fault
    for (const auto& work : works) let_go(work);
  }
  bool inputs_free() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
  }

 private:
  /// Gloo's thread holds references to the tensors until shortly after it reports completion. Waits until they are
  /// released, so that memory use matches the plan.
  static void let_go(const c10::intrusive_ptr<c10d::Work>& work) {
    // A limit, should anything else ever keep a reference: memory is then as much too high, and nothing hangs.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (work.use_count() > 1 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

  std::shared_ptr<const CommunicatorMembers> members_;
  std::vector<int64_t> peers_;
  Works works_;
  std::function<void()> finish_;
  std::chrono::milliseconds limit_;
};

/// The sum of all rows, in row order. bf16 and fp16 are accumulated in fp32, which is also the result's type.
at::Tensor sum_of_rows(const at::Tensor& rows) {
  const bool narrow = at::isReducedFloatingType(rows.scalar_type());
  at::Tensor sum = narrow ? rows[0].to(at::kFloat) : rows[0];
  for (int64_t rank = 1; rank < rows.size(0); ++rank) sum.add_(rows[rank]);
  return sum;
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const CommunicatorRequest& request, c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : Communicator(request.name, request.rank, request.size),
        group_(std::move(group)),
        members_(std::make_shared<const CommunicatorMembers>(
            CommunicatorMembers{request.name, request.members, request.waits})),
        timeout_(request.timeout),
        sent_(static_cast<size_t>(request.size)),
        received_(static_cast<size_t>(request.size)) {
    for (int64_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) others_.push_back(peer);
    }
  }

  std::string_view transport() const override { return "Gloo"; }
  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    group_->setTimeout(timeout);
  }

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    at::Tensor mine = flattened(inputs);
    if (outputs.size() == 1) {
      at::Tensor whole = outputs[0].view({-1});
      return pending(group_->_allgather_base(whole, mine), nullptr);
    }
    at::Tensor messages = at::empty({size() * mine.numel()}, mine.options());
    auto work = group_->_allgather_base(messages, mine);
    return pending(std::move(work), [messages = messages.view({size(), -1}), outputs = std::move(outputs)] {
      unpack_rows(messages, outputs);
    });
  }

  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    at::Tensor sent = pack_rows(inputs, size());
    at::Tensor received = at::empty_like(sent);
    std::vector<int64_t> even;
    auto work = group_->alltoall_base(received, sent, even, even);
    return pending(std::move(work),
                   [sent, received, outputs = std::move(outputs)] { unflatten(sum_of_rows(received), outputs); });
  }

  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    if (reduction == Reduction::sum && at::isReducedFloatingType(tensors[0].scalar_type())) {
      return start_narrow_sum(std::move(tensors));
    }
    std::vector<at::Tensor> message{flattened(tensors)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_reduction(reduction);
    auto work = group_->allreduce(message, options);
    return pending(std::move(work), [message, tensors = std::move(tensors)] { unflatten(message[0], tensors); });
  }

  // Messages between two ranks are numbered, so that several can be distinguished. Gloo's send and receive use the
  // communicator's initial timeout; the wait applies the current one.
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    GlooPending::Works works;
    std::vector<int64_t> peers;
    std::vector<at::Tensor> received, sent;
    for (const Message& message : receives) {
      std::vector<at::Tensor> whole{room_for(message.tensors)};
      received.push_back(whole[0]);
      peers.push_back(message.peer);
      works.push_back(group_->recv(whole, static_cast<int>(message.peer), next_number(received_, message.peer)));
    }
    for (const Message& message : sends) {
      std::vector<at::Tensor> whole{flattened(message.tensors)};
      sent.push_back(whole[0]);
      peers.push_back(message.peer);
      works.push_back(group_->send(whole, static_cast<int>(message.peer), next_number(sent_, message.peer)));
    }
    auto finish = [received, sent, receives = std::move(receives)] {
      for (size_t i = 0; i < receives.size(); ++i) unflatten(received[i], receives[i].tensors);
    };
    return std::make_unique<GlooPending>(members_, std::move(peers), std::move(works), std::move(finish), timeout_);
  }

 private:
  static int next_number(std::vector<int>& numbers, int64_t rank) {
    constexpr int kWrap = 1 << 30;  // both ends of a pair count alike, and neither may overflow
    int& number = numbers[static_cast<size_t>(rank)];
    return number = (number + 1) % kWrap;
  }

  /// All-reduce in bf16 or fp16. Every rank sums its part of the message, then all parts are gathered. The second half
  /// runs in wait().
  Pending start_narrow_sum(Tensors tensors) {
    const at::Tensor message = flattened(tensors);
    const int64_t part = (message.numel() + size() - 1) / size();
    at::Tensor sent = at::zeros({size(), part}, message.options());
    sent.view({-1}).narrow(0, 0, message.numel()).copy_(message);
    at::Tensor received = at::empty_like(sent);
    std::vector<int64_t> even;
    auto work = group_->alltoall_base(received, sent, even, even);
    return pending(std::move(work), [this, sent, received, tensors = std::move(tensors)] {
      at::Tensor mine = sum_of_rows(received).to(sent.scalar_type());
      at::Tensor whole = sent.view({-1});
      members_->wait_for(
          others_, [&] { return translated(name(), [&] { return group_->_allgather_base(whole, mine)->wait(); }); });
      unflatten(whole, tensors);
    });
  }

  Pending pending(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish) {
    return std::make_unique<GlooPending>(members_, others_, GlooPending::Works{std::move(work)}, std::move(finish));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::shared_ptr<const CommunicatorMembers> members_;
  std::vector<int64_t> others_;  // all ranks of the communicator except this one
  std::chrono::milliseconds timeout_;
  std::vector<int> sent_, received_;  // messages so far, by rank
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const CommunicatorRequest& request) {
  auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  options->group_name = request.name + request.instance;
  auto named = c10::make_intrusive<c10d::PrefixStore>("communicator/" + request.name + request.instance, store);
  try {
    options->devices.push_back(request.interface.empty()
                                   ? c10d::ProcessGroupGloo::createDefaultDevice()
                                   : c10d::ProcessGroupGloo::createDeviceForInterface(request.interface));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(named, static_cast<int>(request.rank),
                                                             static_cast<int>(request.size), options);
    return std::make_unique<GlooCommunicator>(request, std::move(group));
  } catch (const std::exception& error) {
    throw Error(
        ExitCode::launcher,
        fmt::format("communicator {} of {} ranks could not be formed ({}); see that all ranks run and can reach each "
                    "other",
                    request.name, request.size, library_words(error)));
  }
}

}  // namespace titan
