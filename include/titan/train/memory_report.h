// Memory by purpose, planned and measured, and what an error about memory says. Pure functions of plans and numbers;
// the trainer calls them.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/estimate/memory_settings.h"
#include "titan/ops/parameter.h"
#include "titan/plan/plan.h"

namespace titan {

/// Memory by purpose at the moment of the process's peak.
struct MeasuredMemory {
  int64_t before_bytes = 0;         // of the process before the job; 0 if only the job's own memory is counted
  int64_t weight_slot_bytes = 0;    // buffers of gathered weights
  int64_t gradient_slot_bytes = 0;  // buffers of unreduced gradients
  std::optional<int64_t> gradient_bytes = {};  // none: freed within their unit's backward
  int64_t optimizer_bytes = 0;
  int64_t host_activation_bytes = 0;  // activations offloaded to the host
  int64_t peak_bytes = 0;
  bool device_only = false;  // the peak excludes host memory
};

/// One purpose: planned and measured bytes. Only unaccounted memory has no planned bytes.
struct MemoryRow {
  std::string purpose;
  int64_t planned = 0;
  int64_t actual = 0;
};

/// One row for each purpose with memory, planned or measured. `planned`: the plan's table of a step or of a validation.
/// Memory that is allocated and freed within it cannot be measured by purpose: the last row holds its sum. On a CPU,
/// pages that were never written are not part of the peak: where the known purposes exceed the peak, the last row has
/// zero bytes.
std::vector<MemoryRow> memory_rows(std::span<const MemoryPurpose> planned, std::span<Parameter* const> parameters,
                                   const MeasuredMemory& measured);
/// The same as lines with a header, and the sums as "together".
std::vector<std::string> comparison_table(std::span<const MemoryRow> rows);

/// If `error` is an out-of-memory error of host or device: the size in the allocator's words, empty if it has none.
std::optional<std::string> out_of_memory_words(const std::exception_ptr& error);

/// oneDNN's message for a failed matmul, which may be caused by a lack of memory; none: another failure.
std::optional<std::string> vague_words(const std::exception_ptr& error);

}  // namespace titan
