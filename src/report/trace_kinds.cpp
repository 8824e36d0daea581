#include "trace_kinds.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

namespace titan {
namespace {

struct Pattern {
  std::string_view part;
  const char* kind;
};

constexpr const char* kProducts = "matrix products";
constexpr const char* kAttention = "attention";
constexpr const char* kCommunication = "communication";
constexpr const char* kCopies = "copies";
constexpr const char* kRest = "elementwise and reductions";

// The first that fits counts: attention kernels made with CUTLASS say so, too.
constexpr std::array kKernels{
    Pattern{"nccl", kCommunication},   Pattern{"Memcpy", kCopies},    Pattern{"Memset", kCopies},
    Pattern{"sdpa", kAttention},       Pattern{"flash", kAttention},  Pattern{"fmha", kAttention},
    Pattern{"attention", kAttention},  Pattern{"gemm", kProducts},    Pattern{"gemv", kProducts},
    Pattern{"nvjet", kProducts},       Pattern{"cutlass", kProducts}, Pattern{"xmma", kProducts},
    Pattern{"splitKreduce", kProducts}};
constexpr std::array kOperations{
    Pattern{"c10d::", kCommunication},  Pattern{"gloo:", kCommunication},   Pattern{"nccl:", kCommunication},
    Pattern{"attention", kAttention},   Pattern{"aten::mm", kProducts},     Pattern{"aten::addmm", kProducts},
    Pattern{"bmm", kProducts},          Pattern{"aten::matmul", kProducts}, Pattern{"aten::linear", kProducts},
    Pattern{"scaled_mm", kProducts},    Pattern{"mkldnn", kProducts},       Pattern{"aten::copy_", kCopies},
    Pattern{"aten::_to_copy", kCopies}, Pattern{"aten::clone", kCopies},    Pattern{"aten::contiguous", kCopies},
    Pattern{"aten::cat", kCopies}};

std::string kind_by(std::span<const Pattern> patterns, std::string_view name) {
  const auto found = std::find_if(patterns.begin(), patterns.end(), [name](const Pattern& pattern) {
    return name.find(pattern.part) != std::string_view::npos;
  });
  return found == patterns.end() ? kRest : found->kind;
}

}  // namespace

std::string kind_of_kernel(std::string_view name) { return kind_by(kKernels, name); }
std::string kind_of_operation(std::string_view name) { return kind_by(kOperations, name); }

bool Stretches::hold(const TraceEvent& event) const {
  const double middle = event.begin + event.length / 2;
  const auto after = ends_.upper_bound({event.thread, middle});
  if (after == ends_.begin()) return false;
  const auto& [place, end] = *std::prev(after);
  return place.first == event.thread && middle < end;
}

}  // namespace titan
