// metrics.jsonl: one JSON object per line, appended during the run. A full disk loses metrics; the run continues.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"
#include "titan/report/attempt_record.h"
#include "titan/report/page.h"
#include "titan/report/prometheus.h"
#include "titan/report/run_history.h"
#include "titan/report/tensorboard.h"

namespace titan {

class MetricsLog {
 public:
  MetricsLog(const std::filesystem::path& path, const Log& log) : path_(path), log_(log), file_(path) {}

  /// Appends a line; only the first failure causes a warning.
  void append(const std::string& json);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const Log& log_;
  AppendFile file_;
  bool warned_ = false;
};

// report.html during a run: holds the page's data and rewrites the page so rarely that training does not slow down.
// Facts about the run are also in run.json, which `titan_train report` and other programs read.

class ReportFile {
 public:
  /// Writes in `folder`, like run.json and metrics.jsonl. If `first_step` is above 1 (a resumed run), the page also
  /// shows the earlier steps in metrics.jsonl. `facts`: for run.json. Failed writes cause one warning.
  ReportFile(std::filesystem::path folder, nlohmann::ordered_json facts, int64_t first_step, const Log& log);

  /// Adds a line of metrics.jsonl. Writes the page if at least kPause seconds and kShare times the last write's
  /// duration have passed, or at once if run.json was removed. `now` and below: seconds since 1970.
  void add(const std::string& line, double now);
  /// Sets the time left that the page shows.
  void set_eta(double seconds) { eta_seconds_ = seconds; }
  void finish(CompletionStatus status, double now);

  // Writing takes at most a hundredth of the time, however long the page gets, and is no load while it is short.
  static constexpr double kPause = 5;
  static constexpr double kShare = 100;

 private:
  /// Writes run.json if it is missing or if `anew` is set.
  void write_facts(bool anew) const;
  void write(CompletionStatus status, double now);
  bool is_due(double now) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json facts_;
  RunHistory history_;
  const Log& log_;
  double eta_seconds_ = 0;
  double next_write_ = 0;
  bool warned_ = false;
};

// All records of a run: metrics.jsonl, TensorBoard events, Prometheus file, page. Owned by the trainer, which reports
// events to it. A failed writer (e.g. on a full disk) does not affect the others.

/// Which records to write; an empty path disables one.
struct RecordTargets {
  std::filesystem::path metrics;      // metrics.jsonl; its folder is created
  std::filesystem::path tensorboard;  // a folder
  std::filesystem::path prometheus;
  std::string run;               // the run's label in Prometheus
  bool report = false;           // report.html and run.json, next to the metrics
  nlohmann::ordered_json facts;  // run.json
};

class RunRecord {
 public:
  /// `first_step` of this process: records of this and later steps by an earlier process are void.
  RunRecord(const RecordTargets& targets, int64_t first_step, const Log& log);

  void add(const StepReport& report);
  void add(const ValidationReport& report);
  void add(const SpikeReport& report);
  void add(const SampleReport& report);
  void add(const StragglerReport& report);
  void add(const RestartReport& report);
  /// The run ends, finally or to be resumed later. If this is not called, the destructor records an error.
  void finish(CompletionStatus status);
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  const std::filesystem::path& metrics_path() const { return metrics_.path(); }

 private:
  /// Appends a line to metrics.jsonl and to the page's data.
  void add_line(const std::string& line);

  MetricsLog metrics_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<PrometheusFile> prometheus_;
  std::unique_ptr<ReportFile> report_;
  bool finished_ = false;
};

}  // namespace titan
