// The clock by which computation and the waits within it are measured.
#pragma once

namespace titan {

/// Seconds of a steady clock. Tests put a clock in its place that other programs on the machine do not disturb.
double compute_time();

}  // namespace titan
