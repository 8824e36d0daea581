// Where tests and benchmarks of kernels run them: the same sources compiled for the host, or a GPU. What differs
// between the two is memory, launching, and what is known of a launch afterwards. No tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "titan/kernels/kernels.h"

namespace titan {

/// Memory of a machine, 16-byte aligned, guard bytes on both sides. Fresh bytes are those of a NaN in every format.
class MachineMemory {
 public:
  MachineMemory() = default;
  MachineMemory(const MachineMemory&) = delete;
  MachineMemory& operator=(const MachineMemory&) = delete;
  virtual ~MachineMemory() = default;

  /// As kernels address it.
  virtual unsigned char* data() = 0;
  virtual void write(const void* from, size_t bytes) = 0;
  /// The bytes as the last launch left them, until the next one.
  virtual const unsigned char* read() const = 0;
  virtual bool guards_intact() const = 0;
};

class KernelMachine {
 public:
  KernelMachine() = default;
  KernelMachine(const KernelMachine&) = delete;
  KernelMachine& operator=(const KernelMachine&) = delete;
  virtual ~KernelMachine() = default;

  virtual std::string name() const = 0;
  virtual std::unique_ptr<MachineMemory> memory(size_t bytes) = 0;

  /// What `launches` launches, and all of its work. Throws std::runtime_error when a kernel fails.
  void run(const std::function<void()>& launches) {
    before_launch();
    launches();
    after_launch();
  }
  /// One launcher of the table so.
  template <class Arguments>
  void launch(void (*Kernels::*kernel)(const Arguments&, CUstream_st*), const std::type_identity_t<Arguments>& a) {
    run([&] { (kernels().*kernel)(a, nullptr); });
  }

  /// How the bytes that the last run moved differ from `stated`; empty when they do not, or nobody counts them.
  virtual std::string traffic_difference(const KernelTraffic& stated) const = 0;

  /// For `run`, and for `seconds_of`, which ends all work itself.
  virtual const Kernels& kernels() const = 0;
  virtual void copy(MachineMemory& to, MachineMemory& from, size_t bytes) = 0;
  /// Of the machine, from the first to the last of what `work` enqueues.
  virtual double seconds_of(const std::function<void()>& work) = 0;

 private:
  virtual void before_launch() = 0;
  virtual void after_launch() = 0;
};

/// Numbers in a machine's memory.
template <class T>
class MachineArray {
 public:
  MachineArray(KernelMachine& machine, size_t count) : memory_(machine.memory(count * sizeof(T))), count_(count) {}
  MachineArray(KernelMachine& machine, const std::vector<T>& values) : MachineArray(machine, values.size()) {
    memory_->write(values.data(), values.size() * sizeof(T));
  }

  T* data() { return reinterpret_cast<T*>(memory_->data()); }
  T operator[](size_t i) const { return values()[i]; }
  size_t size() const { return count_; }
  /// On the host, until the next launch.
  const T* values() const { return reinterpret_cast<const T*>(memory_->read()); }
  bool guards_intact() const { return memory_->guards_intact(); }

 private:
  std::unique_ptr<MachineMemory> memory_;
  size_t count_;
};

/// The host, which counts bytes and checks accesses (cuda_on_host.h).
std::unique_ptr<KernelMachine> make_host_machine();
/// The same, but like a GPU's its memory is the host's only through write and read.
std::unique_ptr<KernelMachine> make_distant_machine();

/// The first GPU, or why there is none to run kernels on.
struct FoundGpu {
  std::unique_ptr<KernelMachine> machine;
  std::string why_not;
};
FoundGpu find_gpu_machine();

}  // namespace titan
