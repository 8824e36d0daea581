// metrics.jsonl: one JSON object a line, appended as the run goes on. A disk that fills up costs metrics, never the
// run.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "titan/base/filesystem.h"
#include "titan/base/log.h"

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

}  // namespace titan
