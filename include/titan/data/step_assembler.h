// Cuts the global sequence of chunks into one rank's microbatches of one step. A pure function of the stream and the
// plan.
#pragma once

#include <optional>

#include "titan/data/batch_stream.h"

namespace titan {

/// Takes the next G chunks from `chunks` and keeps those of `plan.dp_rank`; nothing when not one chunk is left.
/// The step that a finite source cannot fill is padded with rows of ignored labels (see StepBatch::samples).
std::optional<StepBatch> assemble_step(ChunkStream& chunks, const BatchPlan& plan, bool restart_positions);

}  // namespace titan
