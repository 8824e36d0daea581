// A plan as lines of text: memory by purpose, the mesh, what is sent, precision. `plan` prints them, and a run logs
// them at its start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/plan/plan.h"

namespace titan {

/// The table of a step: one line per purpose that takes any bytes, with a mark for host memory, then the sum as
/// "together", and its part on the host if only a part is. If validation takes more, also its forward and its sum.
std::vector<std::string> memory_table(const Plan& plan);

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

}  // namespace titan
