// The newest numbers of a run as a text file in Prometheus' exposition format, for the textfile collector of
// node_exporter: no server in the trainer, and a run that hangs shows as a time that stands still.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "titan/base/log.h"
#include "titan/report/step_report.h"

namespace titan {

/// What is known of a run at some time (`now`: seconds since 1970).
struct PrometheusState {
  std::string run;  // label: which run this is
  bool running = true;
  double now = 0;
  std::optional<StepReport> step = {};
  std::optional<ValidationReport> validation = {};
};
std::string prometheus_text(const PrometheusState& state);

/// Keeps the file; readers see an old one or a new one, never a part. A failed write costs one warning.
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
