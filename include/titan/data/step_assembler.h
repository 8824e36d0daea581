// Cuts the global sequence of chunks into one rank's microbatches of one step. A pure function of the stream and the
// plan.
#pragma once

#include <optional>

#include "titan/data/batch_stream.h"

namespace titan {

/// What a chunk's document bounds mean for its row; see BatchOptions.
struct RowOptions {
  bool restart_positions = false;
  bool labels_end_with_document = false;
};

/// Takes the next G chunks from `chunks` and keeps those of `plan.dp_rank` (of its own stream: only its own, all kept);
/// nothing when not one chunk is left. The step that a finite source cannot fill is padded with rows of ignored labels
/// (see StepBatch::samples). `used`: an earlier batch, for its memory.
std::optional<StepBatch> assemble_step(ChunkSource& chunks, const BatchPlan& plan, const RowOptions& options,
                                       StepBatch used = {});

}  // namespace titan
