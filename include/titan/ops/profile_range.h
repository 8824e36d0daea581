// A named range of work on this thread for the profiler and the allocation record. Costs one thread-local lookup when
// neither is active.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>

namespace titan {

class ProfileRange {
 public:
  /// `phase` alone, or with its object: "forward layers.3".
  explicit ProfileRange(std::string_view phase, std::string_view what = {}) {
    if (!at::hasCallbacks()) return;
    record_.emplace(at::RecordScope::USER_SCOPE);
    if (!record_->isActive()) return;
    name_ = phase;
    if (!what.empty()) name_.append(" ").append(what);
    record_->before(std::string_view(name_));
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  std::string name_;  // must outlive the record, which refers to it
  std::optional<at::RecordFunction> record_;
};

}  // namespace titan
