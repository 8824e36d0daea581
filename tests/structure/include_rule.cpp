#include "include_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "titan/base/text.h"

namespace titan {
namespace {

/// What stands between the quotes or brackets of an #include line.
std::optional<std::string> included_path(std::string_view line) {
  std::string text = trim(line);
  if (!text.starts_with('#')) return std::nullopt;
  text = trim(text.substr(1));
  if (!text.starts_with("include")) return std::nullopt;
  const size_t open = text.find_first_of("\"<");
  const size_t close = text.find_last_of("\">");
  if (open == std::string::npos || close <= open) return std::nullopt;
  return text.substr(open + 1, close - open - 1);
}

size_t rank_of(std::string_view part) {
  const std::vector<std::string>& parts = parts_lowest_first();
  return static_cast<size_t>(std::find(parts.begin(), parts.end(), part) - parts.begin());
}

bool starts_with_any(std::string_view path, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return path.starts_with(p); });
}

/// Why `part` may not include `path`; empty when it may.
std::string objection(std::string_view part, std::string_view path) {
  if (path.starts_with("titan/")) {
    const std::string other = split(path, '/')[1];
    if (rank_of(other) == parts_lowest_first().size()) return fmt::format("{} is not a part", other);
    if (rank_of(other) > rank_of(part)) return fmt::format("{} may not include {}", part, other);
    return {};
  }
  if (path.find("../") != std::string_view::npos) return "another folder's private header";
  const bool knows_tensors = rank_of(part) >= rank_of("gpu") && part != "kernels";
  if (!knows_tensors && starts_with_any(path, {"ATen/", "torch/", "c10/", "c10d/"})) {
    return fmt::format("{} knows no tensors", part);
  }
  if (part != "parquet" && starts_with_any(path, {"arrow/", "parquet/"}))
    return fmt::format("{} does not know Arrow", part);
  if (part != "config" && part != "cli" && part != "app" && path.starts_with("CLI/")) {
    return fmt::format("{} does not know the command line", part);
  }
  return {};
}

}  // namespace

const std::vector<std::string>& parts_lowest_first() {
  static const std::vector<std::string> parts{"base",        "schedule", "config", "text",     "corpus",   "parquet",
                                              "stream",      "plan",     "job",    "estimate", "cli",      "gpu",
                                              "distributed", "kernels",  "ops",    "model",    "parallel", "optimize",
                                              "checkpoint",  "report",   "cuda",   "train",    "tools",    "app"};
  return parts;
}

std::vector<std::string> include_violations(std::string_view part, std::string_view file, std::string_view text) {
  if (rank_of(part) == parts_lowest_first().size()) return {fmt::format("{}: {} is not a part", file, part)};
  std::vector<std::string> violations;
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    const std::optional<std::string> path = included_path(line);
    if (!path) continue;
    const std::string why = objection(part, *path);
    if (!why.empty()) violations.push_back(fmt::format("{}:{}: {} ({})", file, number, why, *path));
  }
  return violations;
}

}  // namespace titan
