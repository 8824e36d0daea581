#include <algorithm>
#include <chrono>

#include "support/cuda_on_host.h"
#include "support/host_kernels.h"
#include "support/kernel_machine.h"

namespace titan {
namespace {

class HostMemory : public MachineMemory {
 public:
  explicit HostMemory(size_t bytes) : memory_(bytes) { std::memset(memory_.data(), 0xff, bytes); }

  unsigned char* data() override { return memory_.data(); }
  void write(const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(memory_.data(), from, bytes);
  }
  const unsigned char* read() const override { return memory_.data(); }
  bool guards_intact() const override { return memory_.guards_intact(); }

 private:
  cuda_on_host::DeviceMemory memory_;
};

class HostMachine : public KernelMachine {
 public:
  std::string name() const override { return "the host"; }
  std::unique_ptr<MachineMemory> memory(size_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  const Kernels& kernels() const override { return host_kernels(); }

  std::string traffic_difference(const KernelTraffic& stated) const override {
    const cuda_on_host::Counted counted = cuda_on_host::counted();
    std::string differences;
    const auto check = [&](const char* what, int64_t actual, int64_t wanted) {
      if (actual == wanted) return;
      differences += "bytes " + std::string(what) + ": " + std::to_string(actual) + " counted, " +
                     std::to_string(wanted) + " stated\n";
    };
    check("read", counted.read, stated.read);
    check("written", counted.written, stated.written);
    check("read again", counted.reread, stated.reread);
    check("written again", counted.rewritten, 0);
    return differences;
  }

  void copy(MachineMemory& to, MachineMemory& from, size_t bytes) override {
    std::memcpy(to.data(), from.read(), bytes);
  }
  double seconds_of(const std::function<void()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 protected:
  void before_launch() override { cuda_on_host::reset_counted(); }
  void after_launch() override {}
};

class DistantMemory;

class DistantMachine : public HostMachine {
 public:
  std::string name() const override { return "the host at a distance"; }
  std::unique_ptr<MachineMemory> memory(size_t bytes) override;

  std::vector<DistantMemory*> memories;

 private:
  void before_launch() override;
  void after_launch() override;
};

/// What kernels touch holds the numbers while a launch runs, and nonsense otherwise.
class DistantMemory : public HostMemory {
 public:
  DistantMemory(DistantMachine& machine, size_t bytes) : HostMemory(bytes), machine_(machine), kept_(bytes, 0xff) {
    machine_.memories.push_back(this);
  }
  ~DistantMemory() override { std::erase(machine_.memories, this); }

  void write(const void* from, size_t bytes) override {
    std::copy_n(static_cast<const char*>(from), bytes, kept_.begin());
  }
  const unsigned char* read() const override { return kept_.data(); }
  void come() { HostMemory::write(kept_.data(), kept_.size()); }
  void go() {
    std::copy_n(data(), kept_.size(), kept_.begin());
    std::fill_n(data(), kept_.size(), 0x5a);
  }

 private:
  DistantMachine& machine_;
  std::vector<unsigned char> kept_;
};

std::unique_ptr<MachineMemory> DistantMachine::memory(size_t bytes) {
  return std::make_unique<DistantMemory>(*this, bytes);
}

void DistantMachine::before_launch() {
  for (DistantMemory* memory : memories) memory->come();
  HostMachine::before_launch();
}

void DistantMachine::after_launch() {
  for (DistantMemory* memory : memories) memory->go();
}

}  // namespace

std::unique_ptr<KernelMachine> make_host_machine() { return std::make_unique<HostMachine>(); }
std::unique_ptr<KernelMachine> make_distant_machine() { return std::make_unique<DistantMachine>(); }

}  // namespace titan
