// metrics.jsonl: one JSON object a line, appended as the run goes on. A disk that fills up costs metrics, never the
// run.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"
#include "titan/report/page.h"
#include "titan/report/prometheus.h"
#include "titan/report/run_history.h"
#include "titan/report/tensorboard.h"

namespace titan {

class MetricsLog {
 public:
  MetricsLog(const std::filesystem::path& path, const Log& log) : path_(path), log_(log), file_(path) {}

  /// Appends a line; the first failure is warned about, later ones are silent.
  void append(const std::string& json);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const Log& log_;
  AppendFile file_;
  bool warned_ = false;
};

// report.html beside a run that goes on: keeps what the page shows, and writes it now and then, so rarely that training
// does not notice. What it says of the run itself is in run.json as well, for `titan_train report` and others.

class ReportFile {
 public:
  /// In `folder`, beside run.json and metrics.jsonl. Of a run that goes on at `first_step` above 1, what metrics.jsonl
  /// tells of the steps before is shown too. `facts`: run.json. Failed writes cost one warning.
  ReportFile(std::filesystem::path folder, nlohmann::ordered_json facts, int64_t first_step, const Log& log);

  /// A line of metrics.jsonl. Writes the page when enough time has passed, at least kPause seconds and kShare times
  /// what writing took, or at once when run.json has been removed. `now` and below: seconds since 1970.
  void add(const std::string& line, double now);
  /// What the page shows as the time that is left.
  void set_eta(double seconds) { eta_seconds_ = seconds; }
  void finish(RunStatus standing, double now);

  static constexpr double kPause = 5;
  static constexpr double kShare = 100;

 private:
  /// run.json, where there is none or `anew`.
  void write_facts(bool anew) const;
  void write(RunStatus standing, double now);
  bool is_due(double now) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json facts_;
  RunHistory history_;
  const Log& log_;
  double eta_seconds_ = 0;
  double next_write_ = 0;
  bool warned_ = false;
};

// Everything that is written down of a run while it goes on: metrics.jsonl, TensorBoard's events, the file for
// Prometheus, the page. Owned by the trainer, which says what happened; each writer's troubles (a full disk) stay its
// own.

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
  void finish(RunStatus standing);
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
