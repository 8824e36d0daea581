#include "recorded_calls.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "comparison.h"

namespace titan {
namespace {

using Lines = std::shared_ptr<std::vector<std::string>>;

class RecordingCommunicator : public ForwardingCommunicator {
 public:
  RecordingCommunicator(std::shared_ptr<Communicator> inner, Lines lines)
      : ForwardingCommunicator(std::move(inner)), lines_(std::move(lines)) {}

 protected:
  struct Noted : PendingCollective {
    Noted(Pending inner, Lines lines, std::string line)
        : inner(std::move(inner)), lines(std::move(lines)), line(std::move(line)) {}
    void wait() override {
      if (!line.empty()) lines->push_back("wait " + line);
      line.clear();
      inner->wait();
    }
    bool inputs_free() override { return inner->inputs_free(); }
    Pending inner;
    Lines lines;
    std::string line;
  };

  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    std::string line = note("all-gather", inputs);
    return noted(std::move(line), ForwardingCommunicator::start_all_gather(std::move(outputs), std::move(inputs)));
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    std::string line = note("reduce-scatter", inputs);
    return noted(std::move(line), ForwardingCommunicator::start_reduce_scatter(std::move(outputs), std::move(inputs)));
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    std::string line = note("all-reduce", tensors);
    return noted(std::move(line), ForwardingCommunicator::start_all_reduce(std::move(tensors), reduction));
  }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    std::string kind = "transfer";
    for (const Message& message : receives) kind += fmt::format(" from {}", message.peer);
    Tensors sent;
    for (const Message& message : sends) {
      kind += fmt::format(" to {}", message.peer);
      sent.insert(sent.end(), message.tensors.begin(), message.tensors.end());
    }
    std::string line = note(kind, sent);
    return noted(std::move(line), ForwardingCommunicator::start_transfer(std::move(receives), std::move(sends)));
  }

 private:
  std::string note(const std::string& kind, const Tensors& tensors) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    std::string line = fmt::format("{} {} {} of {} tensors, {} bytes", name(), ++calls_, kind, tensors.size(), bytes);
    lines_->push_back(line);
    return line;
  }
  Pending noted(std::string line, Pending inner) {
    return std::make_unique<Noted>(std::move(inner), lines_, std::move(line));
  }

  Lines lines_;
  int64_t calls_ = 0;
};

/// A callback of LibTorch's is a plain function: where the ranges of this thread go.
thread_local std::vector<std::string>* ranges_of_thread = nullptr;

std::unique_ptr<at::ObserverContext> note_range(const at::RecordFunction& range) {
  const std::string_view name = range.name();
  for (const std::string_view recorded : {"forward ", "backward ", "evaluate ", "optimizer", "microbatch"}) {
    if (ranges_of_thread && name.starts_with(recorded)) ranges_of_thread->emplace_back(name);
  }
  return nullptr;
}

std::string bits_of(const at::Tensor& tensor) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const at::Tensor whole = tensor.contiguous();
  const auto* bytes = static_cast<const uint8_t*>(whole.const_data_ptr());
  for (size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return fmt::format("{:016x}", hash);
}

}  // namespace

RecordedCalls::RecordedCalls() {
  if (!std::getenv("TITAN_RECORD_CALLS")) return;
  lines_ = std::make_shared<std::vector<std::string>>();
  ranges_of_thread = lines_.get();
  ranges_ = at::addThreadLocalCallback(at::RecordFunctionCallback(note_range).scopes({at::RecordScope::USER_SCOPE}));
}

RecordedCalls::~RecordedCalls() {
  if (!lines_) return;
  at::removeCallback(ranges_);
  ranges_of_thread = nullptr;
}

void RecordedCalls::listen_to(MeshCommunicators& communicators) {
  if (!lines_) return;
  for (const auto communicator :
       {&MeshCommunicators::gather, &MeshCommunicators::scatter, &MeshCommunicators::replicate,
        &MeshCommunicators::tensor, &MeshCommunicators::context, &MeshCommunicators::loss, &MeshCommunicators::pipeline,
        &MeshCommunicators::tied, &MeshCommunicators::model}) {
    if (communicators.*communicator)
      communicators.*communicator = std::make_shared<RecordingCommunicator>(communicators.*communicator, lines_);
  }
  for (auto& [name, communicator] : communicators.of_weights) {
    if (communicator) communicator = std::make_shared<RecordingCommunicator>(communicator, lines_);
  }
}

void RecordedCalls::write(const LayoutRow& row, int64_t rank, const RankResult& result) const {
  if (!lines_) return;
  static std::mutex mutex;
  static std::map<std::string, int64_t> runs;
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = fmt::format("{}.{} {} rank {}", test->test_suite_name(), test->name(), row.name(), rank);
  for (char& letter : name) letter = letter == '/' || letter == ',' || letter == '\n' ? '_' : letter;
  {
    const std::lock_guard lock(mutex);
    name += fmt::format(" run {}", ++runs[name]);
  }
  std::ofstream file(std::filesystem::path(std::getenv("TITAN_RECORD_CALLS")) / name);
  for (const std::string& line : *lines_) file << line << '\n';
  for (const double loss : result.losses) file << fmt::format("loss {:a}\n", loss);
  for (const double norm : result.norms) file << fmt::format("norm {:a}\n", norm);
  for (const auto& [parameter, gradient] : result.gradients) {
    file << fmt::format("gradient {} {}\n", parameter, bits_of(gradient));
  }
  for (const auto& [parameter, weight] : result.weights) {
    file << fmt::format("weight {} {}\n", parameter, bits_of(weight));
  }
  for (const CommunicatorTraffic& traffic : result.plan.traffic) {
    for (const Traffic& planned : traffic.table)
      file << traffic.communicator << ' ' << planned.calls << ' ' << planned.bytes << '\n';
  }
  for (const MemoryPurpose& purpose : result.plan.memory) file << purpose.name << ' ' << purpose.bytes << '\n';
  for (const MemoryPurpose& purpose : result.plan.validation_memory)
    file << purpose.name << ' ' << purpose.bytes << '\n';
  file << "crossed " << result.to_device_bytes << ' ' << result.to_host_bytes << ' ' << result.activation_bytes << ' '
       << result.moment_bytes << " peaks " << result.device_peak << ' ' << result.host_peak << '\n';
}

}  // namespace titan
