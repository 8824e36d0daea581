// report.html: one or several runs, side by side, as a self-contained page: a fixed HTML file (src/report/page.html)
// with the data embedded as JSON. A pure function of the runs' data; its size is bounded for any run length.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "titan/report/run_history.h"

namespace titan {

enum class CompletionStatus { going_on, finished, stopped, broken_off, unknown };

struct ReportedRun {
  std::string name;              // shown if there are several runs
  nlohmann::ordered_json facts;  // from run.json; null if unknown
  const RunHistory* history = nullptr;
  CompletionStatus status = CompletionStatus::unknown;
  double written = 0;      // time of these data, seconds since 1970; 0: unknown
  double eta_seconds = 0;  // only if the run continues
};

/// Element in the head of every page that identifies it as ours.
inline constexpr std::string_view kPageMark = "<meta name=\"generator\" content=\"titan_train\">";

/// Needs at least one run. The page of a single running run reloads itself.
std::string render_page(const std::vector<ReportedRun>& runs);

/// Escapes `text` for use in HTML.
std::string escaped_html(std::string_view text);

}  // namespace titan
