// Cases of kernels: each runs a launcher on a machine (support/kernel_machine.h) and compares what it wrote with a
// reference in fp64 and, where bytes are counted, those it moved with its header's count. Listed, so that every machine
// runs them and they also show which barriers matter.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "support/kernel_machine.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/kernels.h"

namespace titan {

struct KernelCase {
  std::string name;
  /// What is wrong; empty when nothing is. Throws what the machine throws, too.
  std::function<std::string(KernelMachine&)> run;
};

inline void PrintTo(const KernelCase& one, std::ostream* out) { *out << one.name; }

std::vector<KernelCase>& kernel_cases();

/// At namespace scope: adds cases before tests are instantiated.
struct AddKernelCases {
  explicit AddKernelCases(std::vector<KernelCase> cases);
};

/// Reproducible numbers of about unit size; `type` bf16 rounds them.
std::vector<double> numbers(size_t count, uint64_t seed, KernelType type, double scale = 1);

/// Numbers of a kernel's type in a machine's memory, `offset` numbers behind a 16-byte boundary.
class Numbers {
 public:
  Numbers(KernelMachine& machine, KernelType type, const std::vector<double>& values, size_t offset = 0);
  /// `count` that nobody has written yet.
  Numbers(KernelMachine& machine, KernelType type, size_t count, size_t offset = 0);

  void* data() { return array_.data() + offset_ * static_cast<size_t>(bytes_of(type_)); }
  double operator[](size_t i) const;
  size_t size() const { return count_; }
  bool guards_intact() const { return array_.guards_intact(); }

 private:
  KernelType type_;
  size_t count_;
  size_t offset_;
  MachineArray<unsigned char> array_;
};

/// Rounding of `value` to a type.
double rounded_to(KernelType type, double value);

/// Collects what is wrong with a case.
class Findings {
 public:
  /// Element by element within `bound` of the larger of its size and `floor`.
  template <class Actual>
  void compare(const std::string& what, const Actual& actual, const std::vector<double>& expected, double bound,
               double floor = 1) {
    for (size_t i = 0; i < expected.size(); ++i)
      compare_one(what, i, static_cast<double>(actual[i]), expected[i], bound, floor);
    if constexpr (requires { actual.guards_intact(); }) {
      if (!actual.guards_intact()) say(what + ": something was written beside it");
    }
  }
  /// `raised`: the amax slot of the kernel that wrote `written`. Launches the amax kernel: read other results before.
  void compare_amax(KernelMachine& machine, KernelType type, Numbers& written, uint32_t raised);
  /// The bytes that the machine's last launch moved.
  void compare_traffic(const KernelMachine& machine, const KernelTraffic& stated);
  void say(const std::string& what);
  const std::string& text() const { return text_; }

 private:
  void compare_one(const std::string& what, size_t index, double actual, double expected, double bound, double floor);

  std::string text_;
};

inline const char* name(KernelType type) { return type == KernelType::bf16 ? "bf16" : "fp32"; }
/// What a result may be off by: a rounding of its type and sums in fp32.
inline double bound_of(KernelType type) { return type == KernelType::bf16 ? 0x1.02p-8 : 4e-6; }

}  // namespace titan
