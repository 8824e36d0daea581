// report.html beside a run that goes on: keeps what the page shows, and writes it now and then, so rarely that training
// does not notice. What it says of the run itself lies in run.json as well, for `titan_train report` and others.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "titan/base/log.h"
#include "titan/report/page.h"
#include "titan/report/run_history.h"

namespace titan {

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
  void finish(RunStanding standing, double now);

  static constexpr double kPause = 5;
  static constexpr double kShare = 100;

 private:
  /// run.json, where there is none or `anew`.
  void write_facts(bool anew) const;
  void write(RunStanding standing, double now);
  bool is_due(double now) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json facts_;
  RunHistory history_;
  const Log& log_;
  double eta_seconds_ = 0;
  double next_write_ = 0;
  bool warned_ = false;
};

}  // namespace titan
