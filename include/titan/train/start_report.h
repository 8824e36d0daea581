// The lines that a run logs before and after its first step: memory by purpose, parameter groups, the text it reads.
// Pure functions from numbers to lines, except report_start.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/data/batch_stream.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/parameter_groups.h"
#include "titan/parallel/plan.h"

namespace titan {

/// The table of a step: one line per purpose that takes any bytes, with a mark for host memory, then the sum as
/// "together", and its part on the host if only a part is. If validation takes more, also its forward and its sum.
std::vector<std::string> memory_table(const Plan& plan);

/// A header and one line per group: pattern, tensors, parameters, multipliers.
std::vector<std::string> parameter_group_table(std::span<const ParameterGroup> groups,
                                               std::span<Parameter* const> parameters);

/// torchtitan's line about the mesh: axes of size > 1, outermost first.
std::string mesh_line(const DeviceMesh& mesh);
/// The parallelism applied to the model, in torchtitan's words, and a step's traffic; nothing for a single process.
std::vector<std::string> parallelism_lines(const Plan& plan);
/// Traffic between host and device in a step, if weights, activations or moments are offloaded.
std::vector<std::string> offload_lines(const Plan& plan);

/// A warning if float8 is on but excludes every layer, with the reasons; nothing otherwise.
std::optional<std::string> precision_warning(const Plan& plan);
/// The layers that compute in float8, the reasons for the others, and how weights are sent; nothing without float8.
std::vector<std::string> precision_lines(const Plan& plan);
/// Every linear layer with the precision of its matmuls (model.print_after_conversion).
std::vector<std::string> converted_lines(const Plan& plan);

/// A warning if the first loss does not fit the weights. Untrained weights give about ln(`vocabulary`): expected for
/// freshly initialised weights (`is_fresh`), a failed load for loaded ones (`is_trained`).
std::optional<std::string> explain_first_loss(double loss, int64_t vocabulary, bool is_trained, bool is_fresh);

/// `text` as part of one terminal line: without cursor movement and colours, and shortened with "…" if it is too long.
/// Accepts any bytes, since the text comes from a corpus.
std::string excerpt(std::string text);

/// The beginning of a batch as text.
std::string first_text(const StepBatch& batch, const Tokenizer& tokenizer);

struct Run;
/// Logs what a run is about to do: dtypes, predicted memory, parameter groups, the first tokens, batch sizes.
void report_start(const Run& run, const StepBatch& first);

}  // namespace titan
