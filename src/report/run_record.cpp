#include "titan/report/run_record.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"

namespace titan {
namespace {

/// Creates the folder of `path` and returns `path`. Errors are reported when the file is opened.
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
    finish(CompletionStatus::broken_off);
  } catch (...) {  // a writer's error must not replace the one that ended the run
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

void RunRecord::add(const StragglerReport& report) { add_line(json_line(report)); }
void RunRecord::add(const SpikeReport& report) { add_line(json_line(report)); }
void RunRecord::add(const SampleReport& report) { add_line(json_line(report)); }
void RunRecord::add(const RestartReport& report) { add_line(json_line(report)); }

void RunRecord::finish(CompletionStatus status) {
  finished_ = true;
  if (prometheus_) prometheus_->finish(wall_time());
  if (report_) report_->finish(status, wall_time());
}

void MetricsLog::append(const std::string& json) {
  if (file_.append_line(json) || warned_) return;
  warned_ = true;
  log_.warning("metrics are not being written to {}: {}; training continues without them", path_.string(),
               file_.last_error());
}

ReportFile::ReportFile(std::filesystem::path folder, nlohmann::ordered_json facts, int64_t first_step, const Log& log)
    : folder_(std::move(folder)), facts_(std::move(facts)), log_(log) {
  const std::filesystem::path metrics = folder_ / "metrics.jsonl";
  std::error_code ignored;
  try {
    write_facts(/*anew=*/true);
    if (first_step > 1 && std::filesystem::is_regular_file(metrics, ignored)) {
      history_ = read_history(metrics, first_step);
    }
  } catch (const std::exception& error) {
    warned_ = true;
    log_.warning("metrics.report: {}; training continues", error.what());
  }
}

void ReportFile::add(const std::string& line, double now) {
  history_.add_line(line);
  if (is_due(now)) write(CompletionStatus::going_on, now);
}

bool ReportFile::is_due(double now) const {
  // If the clock was set back, the page must not be delayed for long.
  if (now >= next_write_ || next_write_ - now > 1e4) return true;
  std::error_code unknown;
  return !std::filesystem::exists(folder_ / "run.json", unknown) && !unknown;
}

void ReportFile::finish(CompletionStatus status, double now) { write(status, now); }

void ReportFile::write_facts(bool anew) const {
  const std::filesystem::path path = folder_ / "run.json";
  if (!anew && std::filesystem::exists(path)) return;
  std::error_code ignored;  // if it fails, so does writing the file, which says why
  std::filesystem::create_directories(folder_, ignored);
  replace_own_file(path, facts_.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void ReportFile::write(CompletionStatus status, double now) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const std::string log_problem = log_.console_problem();
    const bool is_news = !log_problem.empty() && facts_.value("log", "") != log_problem;
    if (is_news) facts_["log"] = log_problem;
    write_facts(/*anew=*/is_news);  // without news too: the folder may have been removed in the middle of a run
    const std::string name = std::filesystem::absolute(folder_).lexically_normal().filename().string();
    replace_own_file(folder_ / "report.html", render_page({{name, facts_, &history_, status, now, eta_seconds_}}));
  } catch (const std::exception& error) {
    if (!std::exchange(warned_, true)) log_.warning("metrics.report: {}; training continues without it", error.what());
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  next_write_ = now + std::max(kPause, kShare * took);
}

}  // namespace titan
