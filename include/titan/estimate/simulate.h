// Simulates one training step of a job on given GPUs without having them: every pipeline rank's program as events,
// computation by roofline, collectives by bandwidth and hops. docs/benchmarks/simulated.md compares the predictions
// with published numbers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "titan/plan/plan.h"

namespace titan {

/// The shares of a GPU's rates that a step holds.
struct RateShares {
  double products = 0.82, float8_products = 0.745, attention = 0.8, flash_attention = 0.71, memory = 0.86;

  bool operator==(const RateShares&) const = default;
};

/// A GPU and its links. Rates in floating-point operations or bytes per second, each for a call that runs alone.
struct Hardware {
  std::string name;
  double memory_bytes = 0;
  double product_rate = 0, float8_rate = 0;
  double attention_rate = 0;        // of the kernel that a run prefers
  double flash_attention_rate = 0;  // of that of document masks and debug.deterministic
  double memory_rate = 0;
  double nvlink_rate = 0, network_rate = 0;
  double host_link_rate = 0, host_memory_rate = 0;  // per GPU: each direction; its share of the host memory's rate
  int64_t gpus_per_host = 8;
  RateShares likely;  // of these rates, as expected of a step
  RateShares good;    // of these rates, in a step whose products and attention run nearly as fast as alone

  /// This hardware with the rates that a step reaches: `shares` of the published ones. `flash_attention`: whether
  /// attention is computed by that kernel.
  Hardware in_a_step(const RateShares& shares, bool flash_attention) const;
  bool has_range() const { return !(good == likely); }
};

/// Finds hardware by its name in src/estimate/hardware.toml, or reads a TOML file with one such table. Throws
/// Error(bad_config) with the list of names.
Hardware find_hardware(const std::string& name_or_file);
std::vector<std::string> hardware_names();

/// Dense bf16 peak by device name (case is ignored); none for a device that is not in the table.
std::optional<double> peak_flops_of(const std::string& device_name);

enum class EventKind : uint8_t { forward, backward, weight_gradient, optimizer, communication, waiting, repeated };

/// An interval of one rank's time.
struct TimedEvent {
  std::string name;   // "FORWARD layers.3 microbatch 0"
  std::string track;  // kComputeTrack, or the communicator or copy that runs concurrently
  EventKind kind = EventKind::forward;
  double begin = 0, end = 0;
};
inline constexpr const char* kComputeTrack = "compute";
inline constexpr const char* kWaitForStages = "waiting for other stages";  // a purpose of SimulatedRank::seconds

struct SimulatedRank {
  int64_t rank = 0;
  std::map<std::string, double> seconds;  // by purpose: products, attention, memory, waiting for …
  std::vector<TimedEvent> events;
};

struct SimulatedStep {
  double seconds = 0;
  std::vector<SimulatedRank> ranks;  // one per coordinate of the pipeline
};

/// Simulates a step in the middle of a run, at the rates of `hardware` as they are (in_a_step). `plans`: one rank of
/// each pipeline coordinate, in order. Throws Error(bad_config) for float8 on a GPU without it.
SimulatedStep simulate_step(const std::vector<Plan>& plans, const Hardware& hardware, bool keep_events = false);

/// The step as chrome://tracing and Perfetto read it, with a process per rank and a thread per track.
std::string chrome_trace(const SimulatedStep& step);

/// A row per rank and track, to scale, below the text `lines`.
std::string step_svg(const SimulatedStep& step, const std::vector<std::string>& lines);

}  // namespace titan
