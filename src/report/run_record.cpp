#include "titan/report/run_record.h"

#include "titan/base/clock.h"

namespace titan {
namespace {

/// `path`, with the folder made that it lies in; opening the file says what went wrong there.
const std::filesystem::path& with_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  return path;
}

}  // namespace

RunRecord::RunRecord(const RecordTargets& targets, int64_t first_step, const Log& log)
    : metrics_(with_folder(targets.metrics), log) {
  if (!targets.tensorboard.empty()) {
    events_ = std::make_unique<EventFile>(targets.tensorboard, wall_time(), log);
    events_->begin_at(first_step, wall_time());
  }
  if (!targets.prometheus.empty()) {
    prometheus_ = std::make_unique<PrometheusFile>(targets.prometheus, targets.run, log);
  }
  if (targets.report) {
    report_ = std::make_unique<ReportFile>(targets.metrics.parent_path(), targets.facts, first_step, log);
  }
}

RunRecord::~RunRecord() {
  if (finished_) return;
  try {
    finish(RunStanding::broken_off);
  } catch (...) {  // what ends the run is on its way up, and no trouble of a writer may take its place
  }
}

void RunRecord::add_line(const std::string& line) {
  metrics_.append(line);
  if (report_) report_->add(line, wall_time());
}

void RunRecord::add(const StepReport& report) {
  if (report_) report_->set_eta(report.eta_seconds);
  add_line(json_line(report));
  if (events_) events_->add(report.step, wall_time(), tagged_values(report));
  if (prometheus_) prometheus_->add(report, wall_time());
}

void RunRecord::add(const ValidationReport& report) {
  add_line(json_line(report));
  if (events_) events_->add(report.step, wall_time(), tagged_values(report));
  if (prometheus_) prometheus_->add(report, wall_time());
}

void RunRecord::add(const SpikeReport& report) { add_line(json_line(report)); }

void RunRecord::finish(RunStanding standing) {
  finished_ = true;
  if (prometheus_) prometheus_->finish(wall_time());
  if (report_) report_->finish(standing, wall_time());
}

}  // namespace titan
