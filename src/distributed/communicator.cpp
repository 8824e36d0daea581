#include "titan/distributed/communicator.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/distributed/collective_trace.h"

namespace titan {

namespace {

/// Adds the seconds of its lifetime to a CollectiveTime; null: adds nothing.
class Stopwatch {
 public:
  explicit Stopwatch(CollectiveTime* time) : time_(time), start_(time ? compute_time() : 0) {}
  ~Stopwatch() {
    if (time_) time_->seconds += compute_time() - start_;
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  CollectiveTime* time_;
  double start_;
};

/// A collective that is recorded, timed or both.
class ObservedPending : public PendingCollective {
 public:
  ObservedPending(Pending observed, std::shared_ptr<CollectiveTrace> trace, int64_t number,
                  std::shared_ptr<CollectiveTime> time)
      : observed_(std::move(observed)), trace_(std::move(trace)), number_(number), time_(std::move(time)) {}
  void wait() override {
    const Stopwatch watch(time_.get());
    observed_->wait();
    if (trace_) trace_->waited(number_);
  }
  bool inputs_free() override { return observed_->inputs_free(); }

 private:
  Pending observed_;
  std::shared_ptr<CollectiveTrace> trace_;  // null: off
  int64_t number_;
  std::shared_ptr<CollectiveTime> time_;  // null: off
};

/// What a failed check says of tensors: "Float [2, 3] on cpu, BFloat16 [4] on cpu, strides [2]".
std::string summary_of(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    if (!text.empty()) text += ", ";
    if (!tensor.defined()) {
      text += "undefined";
      continue;
    }
    text += fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                        tensor.device().str());
    if (!tensor.is_contiguous()) text += fmt::format(", strides [{}]", fmt::join(tensor.strides(), ", "));
  }
  return text;
}

/// True if one call can take the list: defined tensors of one dtype on one device.
bool of_one_kind(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == tensors[0].scalar_type() &&
           tensor.device() == tensors[0].device();
  });
}

/// The same, and contiguous. A transport for CPUs could copy strided tensors, but NCCL sends the memory as it is, so a
/// sender and a receiver with other strides would exchange elements without an error.
bool can_be_sent(const std::vector<at::Tensor>& tensors) {
  return of_one_kind(tensors) &&
         std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
}

/// True if each of `wholes` [ranks·n, …] or [ranks, n, …] has a part [n, …] of `parts` for each rank.
bool hold_parts(const std::vector<at::Tensor>& wholes, const std::vector<at::Tensor>& parts, int64_t ranks) {
  if (wholes.empty() || wholes.size() != parts.size() || !can_be_sent(wholes) || !can_be_sent(parts) ||
      !of_one_kind({wholes[0], parts[0]})) {
    return false;
  }
  for (size_t i = 0; i < wholes.size(); ++i) {
    const at::IntArrayRef whole = wholes[i].sizes(), part = parts[i].sizes();
    const bool below =
        !part.empty() && whole.size() == part.size() && whole[0] == ranks * part[0] && whole.slice(1) == part.slice(1);
    const bool apart = whole.size() == part.size() + 1 && whole[0] == ranks && whole.slice(1) == part;
    if (!below && !apart) return false;
  }
  return true;
}

}  // namespace

template <class Start>
Pending Communicator::counted(Collective kind, const Tensors& whole, const Start& start) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : whole) bytes += static_cast<int64_t>(tensor.nbytes());
  traffic_[static_cast<size_t>(kind)] += {.calls = 1, .bytes = bytes};
  if (!trace_ && !time_) return start();
  const int64_t number = trace_ ? trace_->issued(*this, kind, bytes) : 0;
  const Stopwatch watch(time_.get());
  return std::make_unique<ObservedPending>(start(), trace_, number, time_);
}

Pending Communicator::all_gather(Tensors outputs, Tensors inputs) {
  TITAN_CHECK(hold_parts(outputs, inputs, size_), name_, size_, summary_of(outputs), summary_of(inputs));
  return counted(Collective::all_gather, outputs,
                 [&] { return start_all_gather(std::move(outputs), std::move(inputs)); });
}

Pending Communicator::reduce_scatter(Tensors outputs, Tensors inputs) {
  TITAN_CHECK(hold_parts(inputs, outputs, size_), name_, size_, summary_of(inputs), summary_of(outputs));
  return counted(Collective::reduce_scatter, inputs,
                 [&] { return start_reduce_scatter(std::move(outputs), std::move(inputs)); });
}

Pending Communicator::all_reduce(Tensors tensors, Reduction reduction) {
  TITAN_CHECK(!tensors.empty() && can_be_sent(tensors), name_, summary_of(tensors));
  return counted(Collective::all_reduce, tensors, [&] { return start_all_reduce(std::move(tensors), reduction); });
}

Pending Communicator::transfer(std::vector<Message> receives, std::vector<Message> sends) {
  for (const std::vector<Message>* messages : {&sends, &receives}) {
    for (const auto& [peer, tensors] : *messages) {
      TITAN_CHECK(peer != rank_ && peer >= 0 && peer < size_, name_, peer);
      TITAN_CHECK(!tensors.empty() && can_be_sent(tensors), name_, peer, summary_of(tensors));
    }
  }
  Tensors sent;
  for (const Message& message : sends) sent.insert(sent.end(), message.tensors.begin(), message.tensors.end());
  return counted(Collective::permute, sent, [&] { return start_transfer(std::move(receives), std::move(sends)); });
}

Pending Communicator::permute(Tensors outputs, Tensors inputs, int64_t to, int64_t from) {
  TITAN_CHECK((to == kNoRank) == inputs.empty() && (from == kNoRank) == outputs.empty(), name_, to, from);
  std::vector<Message> receives, sends;
  if (from != kNoRank) receives.push_back({from, std::move(outputs)});
  if (to != kNoRank) sends.push_back({to, std::move(inputs)});
  return transfer(std::move(receives), std::move(sends));
}

namespace {

class NothingPending : public PendingCollective {
 public:
  void wait() override {}
  bool inputs_free() override { return true; }
};

class FakeCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  std::string_view transport() const override { return "nothing"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].zero_();
      own_rows(outputs[i], inputs[i]).copy_(inputs[i]);
    }
    return std::make_unique<NothingPending>();
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(own_rows(inputs[i], outputs[i]));
    return std::make_unique<NothingPending>();
  }
  Pending start_all_reduce(Tensors, Reduction) override { return std::make_unique<NothingPending>(); }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message>) override {
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) tensor.zero_();
    }
    return std::make_unique<NothingPending>();
  }

 private:
  at::Tensor own_rows(const at::Tensor& whole, const at::Tensor& share) const {
    return whole.view({-1}).narrow(0, rank() * share.numel(), share.numel()).view(share.sizes());
  }
};

}  // namespace

std::unique_ptr<Communicator> make_fake_communicator(std::string name, int64_t rank, int64_t size) {
  return std::make_unique<FakeCommunicator>(std::move(name), rank, size);
}

namespace {

/// Of contiguous tensors: true if they follow each other in memory.
bool neighbours(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    const at::Tensor& before = tensors[i - 1];
    if (!before.storage().is_alias_of(tensors[i].storage()) ||
        before.storage_offset() + before.numel() != tensors[i].storage_offset()) {
      return false;
    }
  }
  return true;
}

at::Tensor as_one(const std::vector<at::Tensor>& neighbours) {
  return neighbours[0].as_strided({total_elements(neighbours)}, {1}, neighbours[0].storage_offset());
}

/// True if the list has the dtype and the device of `message`; an empty list does.
bool same_kind(const at::Tensor& message, const std::vector<at::Tensor>& tensors) {
  return of_one_kind({message}) && (tensors.empty() || of_one_kind({message, tensors[0]}));
}

/// True if `message` [n] has room for the tensors. It may be longer: reductions pad it to equal parts of the ranks.
bool holds_all(const at::Tensor& message, const std::vector<at::Tensor>& tensors) {
  return can_be_sent(tensors) && message.defined() && message.dim() == 1 && message.numel() >= total_elements(tensors);
}

/// True if `message` is the fp32 sum of what will be bf16 or fp16, on the same device.
bool is_wide_sum(const at::Tensor& message, const std::vector<at::Tensor>& tensors) {
  return message.scalar_type() == at::kFloat && !tensors.empty() && message.device() == tensors[0].device() &&
         at::isReducedFloatingType(tensors[0].scalar_type());
}

}  // namespace

int64_t total_elements(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  return total;
}

void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& message) {
  TITAN_CHECK(holds_all(message, tensors) && same_kind(message, tensors), summary_of({message}), summary_of(tensors));
  if (neighbours(tensors)) {
    message.copy_(as_one(tensors));
    return;
  }
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    message.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    offset += tensor.numel();
  }
}

at::Tensor room_for(const std::vector<at::Tensor>& tensors) {
  TITAN_CHECK(!tensors.empty() && can_be_sent(tensors), summary_of(tensors));
  return neighbours(tensors) ? as_one(tensors) : at::empty({total_elements(tensors)}, tensors[0].options());
}

at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  TITAN_CHECK(!tensors.empty() && can_be_sent(tensors), summary_of(tensors));
  if (neighbours(tensors)) return as_one(tensors);
  at::Tensor message = at::empty({total_elements(tensors)}, tensors[0].options());
  pack(tensors, message);
  return message;
}

void unpack_rows(const at::Tensor& messages, const std::vector<at::Tensor>& outputs) {
  TITAN_CHECK(messages.dim() == 2 && messages.numel() == total_elements(outputs) && can_be_sent(outputs) &&
                  same_kind(messages, outputs),
              summary_of({messages}), summary_of(outputs));
  const int64_t ranks = messages.size(0);
  int64_t offset = 0;
  for (const at::Tensor& output : outputs) {
    const int64_t each = output.numel() / ranks;
    output.view({ranks, each}).copy_(messages.narrow(1, offset, each));
    offset += each;
  }
}

at::Tensor pack_rows(const std::vector<at::Tensor>& inputs, int64_t ranks) {
  const bool divisible = std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return input.defined() && input.numel() % ranks == 0;
  });
  TITAN_CHECK(!inputs.empty() && divisible && can_be_sent(inputs), ranks, summary_of(inputs));
  if (inputs.size() == 1) return inputs[0].view({ranks, -1});
  at::Tensor messages = at::empty({ranks, total_elements(inputs) / ranks}, inputs[0].options());
  int64_t offset = 0;
  for (const at::Tensor& input : inputs) {
    const int64_t each = input.numel() / ranks;
    messages.narrow(1, offset, each).copy_(input.view({ranks, each}));
    offset += each;
  }
  return messages;
}

void unflatten(const at::Tensor& message, const std::vector<at::Tensor>& tensors) {
  TITAN_CHECK(holds_all(message, tensors) && (same_kind(message, tensors) || is_wide_sum(message, tensors)),
              summary_of({message}), summary_of(tensors));
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor part = message.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    if (part.const_data_ptr() != tensor.const_data_ptr()) tensor.copy_(part);
    offset += tensor.numel();
  }
}

}  // namespace titan
