// The lines that a run logs before and after its first step: memory by purpose, parameter groups, the text it reads.
// Pure functions from numbers to lines, except report_start.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/job/parameter_groups.h"
#include "titan/ops/parameter.h"
#include "titan/plan/plan.h"
#include "titan/stream/batch_stream.h"

namespace titan {

/// A header and one line per group: pattern, tensors, parameters, multipliers.
std::vector<std::string> parameter_group_table(std::span<const ParameterGroup> groups,
                                               std::span<Parameter* const> parameters);

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
