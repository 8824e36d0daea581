#include "titan/report/metrics_log.h"

namespace titan {

void MetricsLog::append(const std::string& json) {
  if (file_.append_line(json) || warned_) return;
  warned_ = true;
  log_.warning("metrics are not being written to {}: {}; training goes on without them", path_.string(),
               file_.last_error());
}

}  // namespace titan
