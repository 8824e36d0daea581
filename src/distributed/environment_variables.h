// Environment variables with the refusals that go with them: what a launcher should have set and did not.
#pragma once

#include <fmt/format.h>

#include <charconv>

#include "titan/base/error.h"
#include "titan/distributed/launch_environment.h"

namespace titan {

/// A value for a message: its beginning, when it is as long as lists of many hosts are.
inline std::string as_shown(std::string_view value) {
  constexpr size_t kMost = 60;
  if (value.size() <= kMost) return fmt::format("\"{}\"", value);
  return fmt::format("\"{}…\" ({} bytes)", value.substr(0, kMost), value.size());
}

class EnvironmentVariables {
 public:
  explicit EnvironmentVariables(const LaunchContext& context) : context_(context) {}

  /// Nothing when the variable is unset or empty.
  std::optional<std::string> text(std::string_view name) const {
    std::optional<std::string> value = context_.variable(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  std::string text_or(std::string_view name, std::string otherwise) const {
    return text(name).value_or(std::move(otherwise));
  }
  bool has(std::string_view name) const { return text(name).has_value(); }

  /// Throws Error(launcher) when the variable is set and is no whole number from 0 on.
  std::optional<int64_t> number(std::string_view name) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), parsed);
    if (error != std::errc() || end != value->data() + value->size() || parsed < 0) {
      throw Error(ExitCode::launcher,
                  fmt::format("{} = {} is not a whole number; unset it, or start the run with a launcher that sets it",
                              name, as_shown(*value)));
    }
    return parsed;
  }
  int64_t number_or(std::string_view name, int64_t otherwise) const { return number(name).value_or(otherwise); }

  /// Throws Error(launcher) naming `because`, a variable that is there, when `name` is not.
  int64_t required_number(std::string_view name, std::string_view because) const {
    if (const std::optional<int64_t> value = number(name)) return *value;
    throw Error(
        ExitCode::launcher,
        fmt::format("{} is set and {} is not; unset the first, or say comm.rank, comm.world_size and comm.master",
                    because, name));
  }

 private:
  const LaunchContext& context_;
};

}  // namespace titan
