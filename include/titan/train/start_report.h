// The lines that a run shows before and after its first step: memory by purpose, parameter groups, the text it reads.
// Pure functions from numbers to lines; the trainer knows the numbers and says when.
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

/// Of a step: one line per purpose that takes any bytes, those on the host marked, then the sum as "together"; and what
/// of it is on the host, where only a part is. Where a validation takes more, its forward and its own sum.
std::vector<std::string> memory_table(const Plan& plan);

/// A head and one line per group: pattern, tensors, parameters, multipliers.
std::vector<std::string> parameter_group_table(std::span<const ParameterGroup> groups,
                                               std::span<Parameter* const> parameters);

/// torchtitan's line about the mesh: the axes longer than one, outermost first.
std::string mesh_line(const DeviceMesh& mesh);
/// What was applied to the model, in torchtitan's words, and what a step sends; nothing for a single process.
std::vector<std::string> parallelism_lines(const Plan& plan);
/// What crosses between host and device in a step, where weights, activations or moments do.
std::vector<std::string> offload_lines(const Plan& plan);

/// That float8 is on and every layer left out of it, and why; nothing where a layer is converted and without float8.
std::optional<std::string> precision_warning(const Plan& plan);
/// Which layers compute in float8 and why the others do not, and how their weights travel; nothing without float8.
std::vector<std::string> precision_lines(const Plan& plan);
/// Every linear layer with the precision of its products (model.print_after_conversion).
std::vector<std::string> converted_lines(const Plan& plan);

/// A warning if the first loss does not fit the weights. Untrained weights give about ln(`vocabulary`): expected for
/// freshly initialised weights (`is_fresh`), a failed load for loaded ones (`is_trained`).
std::optional<std::string> explain_first_loss(double loss, int64_t vocabulary, bool is_trained, bool is_fresh);

/// `text` as part of one line of a terminal: nothing in it moves the cursor or changes colours, and it ends with "…"
/// where it was too long. Text comes from a corpus, so any bytes are taken.
std::string excerpt(std::string text);

/// The beginning of a batch as text.
std::string first_text(const StepBatch& batch, const Tokenizer& tokenizer);

struct Run;
/// Reports what a run is about to do: dtypes, predicted memory, parameter groups, the first tokens, batch sizes.
void report_start(const Run& run, const StepBatch& first);

}  // namespace titan
