// report.html: a run, or several side by side, as one page that needs nothing else: a fixed HTML file
// (src/report/page.html) with the data as JSON in it. A pure function of what is known of the runs; its size is bounded
// however long they are.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "titan/report/run_history.h"

namespace titan {

enum class RunStatus { going_on, finished, stopped, broken_off, unknown };

struct RunView {
  std::string name;              // shown where there are several
  nlohmann::ordered_json facts;  // of run.json; null when it is not known
  const RunHistory* history = nullptr;
  RunStatus status = RunStatus::unknown;
  double written = 0;      // when this was known, seconds since 1970; 0: unknown
  double eta_seconds = 0;  // of a run that continues
};

/// In the head of every page, by which one is known again.
inline constexpr std::string_view kPageMark = "<meta name=\"generator\" content=\"titan_train\">";

/// At least one run. The page of a single running run asks the browser to reload it.
std::string render_page(const std::vector<RunView>& runs);

/// `text` as text of a page.
std::string escaped_html(std::string_view text);

}  // namespace titan
