// NCCL between GPUs: a list of tensors is one NCCL group, sent and received in place. LibTorch's group owns the stream;
// a call waits for work enqueued before it, and `wait` blocks the current stream, not the host. An OverdueWatch
// therefore enforces timeouts and ends the run cleanly; LibTorch's watchdog, which aborts the process, fires later and
// only if that failed.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "parts.h"
#include "titan/base/error.h"
#include "titan/distributed/collective_trace.h"
#include "titan/distributed/communicator_members.h"

namespace titan {
namespace {

class NcclPending : public PendingCollective {
 public:
  explicit NcclPending(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  ~NcclPending() override {
    try {
      wait();
    } catch (const std::exception&) {  // a caller that needs the result waits itself
    }
  }
  void wait() override {
    if (work_) work_->wait();
    work_.reset();
  }
  bool inputs_free() override { return !work_ || work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

using NcclWork = c10d::ProcessGroupNCCL::WorkNCCL;

/// The events of a collective without its tensors: a copy without outputs, with its own list of inputs, because
/// LibTorch's copies share theirs. The poller must not hold tensors: a tensor passed to autograd keeps its graph, saved
/// activations and, with tensor parallelism, this communicator alive.
class NcclEvents : public NcclWork {
 public:
  explicit NcclEvents(const c10d::Work& work) : NcclWork(dynamic_cast<const NcclWork&>(work)) {
    stashed_for_allocator_safety_ = std::make_shared<c10d::TensorShelf>();
  }
};

/// A LibTorch process group for one or several communicators. Its destructor aborts, which can take the last chunk from
/// a slower rank and blocks behind other communicators' hanging kernels. So the communicator is shut down instead, or
/// left until the process ends.
class NcclTransport {
 public:
  explicit NcclTransport(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group) : group_(std::move(group)) {}
  ~NcclTransport() {
    if (!is_shut_) (void)group_.release();
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  c10d::ProcessGroupNCCL* operator->() const { return group_.get(); }
  void shut_down() {
    if (is_shut_) return;
    group_->shutdown();
    is_shut_ = true;
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  bool is_shut_ = false;
};

/// Extra time before LibTorch's watchdog fires, so that ours can end the run first.
constexpr std::chrono::seconds kOrderlyEnd{60};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const CommunicatorRequest& request, std::shared_ptr<NcclTransport> transport,
                   std::shared_ptr<OverdueWatch> watch)
      : Communicator(request.name, request.rank, request.size),
        group_(std::move(transport)),
        members_{request.name, request.members, request.waits},
        others_(members_.others(request.rank)),
        watch_(std::move(watch)),
        timeout_(request.timeout) {}

  std::string_view transport() const override { return "NCCL"; }
  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    (*group_)->setTimeout(timeout + kOrderlyEnd);
  }
  void shut_down() override { group_->shut_down(); }

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    return watched(Collective::all_gather, others_, (*group_)->allgather_into_tensor_coalesced(outputs, inputs));
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    return watched(Collective::reduce_scatter, others_, (*group_)->reduce_scatter_tensor_coalesced(outputs, inputs));
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = c10d_reduction(reduction);
    return watched(Collective::all_reduce, others_, (*group_)->allreduce_coalesced(tensors, options));
  }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    (*group_)->startCoalescing();
    for (const Message& message : sends) {
      for (const at::Tensor& tensor : message.tensors) {
        std::vector<at::Tensor> sent{tensor};
        (*group_)->send(sent, static_cast<int>(message.peer), /*tag=*/0);
      }
    }
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) {
        std::vector<at::Tensor> received{tensor};
        (*group_)->recv(received, static_cast<int>(message.peer), /*tag=*/0);
      }
    }
    return watched(Collective::permute, peers_of(receives, sends), (*group_)->endCoalescing());
  }

 private:
  WaitForGraph::Ranks peers_of(const std::vector<Message>& receives, const std::vector<Message>& sends) const {
    if (!others_) return nullptr;
    auto ranks = std::make_shared<std::vector<int64_t>>();
    for (const std::vector<Message>* messages : {&receives, &sends}) {
      for (const Message& message : *messages) ranks->push_back(members_.run_rank(message.peer));
    }
    return ranks;
  }

  Pending watched(Collective kind, const WaitForGraph::Ranks& peers, c10::intrusive_ptr<c10d::Work> work) {
    ++calls_;
    if (watch_ && work) {
      watch_->add(
          members_.noted(peers, [events = std::make_shared<NcclEvents>(*work)] { return events->isCompleted(); }),
          fmt::format("{} {} of communicator {}", titan::name(kind), calls_, name()), timeout_);
    }
    return std::make_unique<NcclPending>(std::move(work));
  }

  std::shared_ptr<NcclTransport> group_;
  CommunicatorMembers members_;
  WaitForGraph::Ranks others_;
  std::shared_ptr<OverdueWatch> watch_;
  std::chrono::milliseconds timeout_;
  int64_t calls_ = 0;
};

std::shared_ptr<NcclTransport> connect(const c10::intrusive_ptr<c10d::Store>& store, const CommunicatorRequest& request,
                                       int64_t gpu) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = request.timeout + kOrderlyEnd;
  options->group_name = request.name + request.instance;
  auto named = c10::make_intrusive<c10d::PrefixStore>("communicator/" + request.name + request.instance, store);
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(named, static_cast<int>(request.rank),
                                                           static_cast<int>(request.size), options);
  group->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)));
  return std::make_shared<NcclTransport>(std::move(group));
}

}  // namespace

MakeCommunicator nccl_communicator_maker(c10::intrusive_ptr<c10d::Store> store, int64_t gpu,
                                         std::shared_ptr<OverdueWatch> watch) {
  // By queue and members: communicators of axes with the same members share one of NCCL's, which takes GPU memory.
  using Key = std::pair<std::string, std::vector<int64_t>>;
  auto transports = std::make_shared<std::map<Key, std::weak_ptr<NcclTransport>>>();
  return [store = std::move(store), gpu, watch = std::move(watch), transports](const CommunicatorRequest& request) {
    std::weak_ptr<NcclTransport>& kept = (*transports)[{request.queue, request.members}];
    std::shared_ptr<NcclTransport> transport = request.members.empty() ? nullptr : kept.lock();
    if (!transport) kept = transport = connect(store, request, gpu);
    return std::make_unique<NcclCommunicator>(request, std::move(transport), watch);
  };
}

}  // namespace titan
