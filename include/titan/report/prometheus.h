// The newest numbers of a run as a text file in Prometheus' exposition format, for the textfile collector of
// node_exporter: no server in the trainer; a run that hangs shows as a timestamp that does not change.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "titan/base/log.h"
#include "titan/report/step_report.h"

namespace titan {

/// The state of a run at `now` (seconds since 1970).
struct PrometheusState {
  std::string run;  // label: which run this is
  bool running = true;
  double now = 0;
  std::optional<StepReport> step = {};
  std::optional<ValidationReport> validation = {};
};
std::string prometheus_text(const PrometheusState& state);

/// Writes the file; readers see the old one or the new one, never a part. Failed writes cause one warning.
class PrometheusFile {
 public:
  /// `run` names the run in every line.
  PrometheusFile(std::filesystem::path path, std::string run, const Log& log);

  void add(const StepReport& report, double now);
  void add(const ValidationReport& report, double now);
  /// The run is over.
  void finish(double now);

 private:
  /// At most one write a second, so that short steps do not wait for a disk.
  void write(double now, bool at_once);

  std::filesystem::path path_;
  PrometheusState state_;
  const Log& log_;
  double last_write_ = 0;
  bool warned_ = false;
};

}  // namespace titan
