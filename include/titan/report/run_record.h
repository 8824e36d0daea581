// Everything that is written down of a run while it goes on: metrics.jsonl, TensorBoard's events, the file for
// Prometheus, the page. Owned by the trainer, which says what happened; each writer's troubles (a full disk) stay its
// own.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "titan/base/log.h"
#include "titan/report/metrics_log.h"
#include "titan/report/prometheus.h"
#include "titan/report/report_file.h"
#include "titan/report/tensorboard.h"

namespace titan {

/// What is wanted; empty paths: not that.
struct RecordTargets {
  std::filesystem::path metrics;      // metrics.jsonl; its folder is made
  std::filesystem::path tensorboard;  // a folder
  std::filesystem::path prometheus;
  std::string run;               // what Prometheus' lines call it
  bool report = false;           // report.html and run.json, beside the metrics
  nlohmann::ordered_json facts;  // run.json
};

class RunRecord {
 public:
  /// `first_step` of this process: what was recorded of it and of later ones by a process before is void.
  RunRecord(const RecordTargets& targets, int64_t first_step, const Log& log);

  void add(const StepReport& report);
  void add(const ValidationReport& report);
  void add(const SpikeReport& report);
  /// The run ends here, for now or for good. Without this call it has ended by an error.
  void finish(RunStanding standing);
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  const std::filesystem::path& metrics_path() const { return metrics_.path(); }

 private:
  /// A line of metrics.jsonl, which the page is made of as well.
  void add_line(const std::string& line);

  MetricsLog metrics_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<PrometheusFile> prometheus_;
  std::unique_ptr<ReportFile> report_;
  bool finished_ = false;
};

}  // namespace titan
