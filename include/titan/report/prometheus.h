// The newest numbers of a run as a text file in Prometheus' exposition format, for node_exporter's textfile collector,
// so the trainer needs no server. If a run hangs, its timestamp stops changing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "titan/base/log.h"
#include "titan/report/step_report.h"

namespace titan {

/// The state of a run at `now` (seconds since 1970).
struct PrometheusState {
  std::string run;  // label that identifies the run
  bool running = true;
  double now = 0;
  std::optional<StepReport> step = {};
  std::optional<ValidationReport> validation = {};
};
std::string prometheus_text(const PrometheusState& state);

/// Replaces the file atomically: readers see the old or the new one. Failed writes cause one warning.
class PrometheusFile {
 public:
  /// `run`: the label on every line.
  PrometheusFile(std::filesystem::path path, std::string run, const Log& log);

  void add(const StepReport& report, double now);
  void add(const ValidationReport& report, double now);
  /// The run has ended.
  void finish(double now);

 private:
  /// Writes at most once per second, unless `at_once`, so that short steps do not wait for a disk.
  void write(double now, bool at_once);

  std::filesystem::path path_;
  PrometheusState state_;
  const Log& log_;
  double last_write_ = 0;
  bool warned_ = false;
};

}  // namespace titan
