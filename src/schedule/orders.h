// The orders of compute actions on one rank. Private to schedule; families.cpp ties them to names.
// All agree with PyTorch 2.11 (tests/reference/schedules_test.py); docs/schedules.md explains them with pictures.
#pragma once

#include <vector>

#include "titan/schedule/families.h"

namespace titan::detail {

std::vector<Action> gpipe_order(const PipelineShape& shape, int rank);
std::vector<Action> one_forward_one_backward_order(const PipelineShape& shape, int rank);
std::vector<Action> interleaved_order(const PipelineShape& shape, int rank);
std::vector<Action> looped_breadth_first_order(const PipelineShape& shape, int rank);
std::vector<Action> interleaved_zero_bubble_order(const PipelineShape& shape, int rank);
std::vector<Action> v_zero_bubble_order(const PipelineShape& shape, int rank);
std::vector<Action> dual_pipe_v_order(const PipelineShape& shape, int rank);

/// Microbatches that an interleaved schedule takes through one stage before it goes on to the rank's next stage: those
/// of one round. There are max(1, microbatches / ranks) rounds, which have to be equal.
bool rounds_are_equal(const PipelineShape& shape);

}  // namespace titan::detail
