// The page is src/report/page.html: its style, and its script, which draws everything from the JSON made here.
#include "titan/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include "page_html.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

// Long enough to look at a chart before it moves; the page itself changes every few seconds (ReportFile::kPause).
constexpr int kReloadSeconds = 30;

/// CSS class and text of the badge.
Json status_of(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::going_on:
      return {"going", "running"};
    case CompletionStatus::finished:
      return {"done", "finished"};
    case CompletionStatus::stopped:
      return {"halt", "stopped"};
    case CompletionStatus::broken_off:
      return {"broken", "ended by an error"};
    case CompletionStatus::unknown:
      break;
  }
  return {"plain", ""};
}

std::string title_of(const ReportedRun& run) {
  const std::string description = run.facts.is_object() ? run.facts.value("description", "") : "";
  return description.empty() || description == "default job" ? run.name : description;
}

/// Six digits are enough for a drawing.
Json rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

/// Non-finite values become strings, because JSON has no numbers for them.
Json shown(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "∞" : "−∞";
}

/// x: steps; y: values; s: smoothed values; lo, hi: range, if buckets have several steps; a, b: first and last step.
Json curve_of(const Series& series) {
  const auto& buckets = series.buckets();
  Json x = Json::array(), y = Json::array(), low = Json::array(), high = Json::array(), smooth = Json::array();
  bool gathered = false;
  for (const Series::Bucket& bucket : buckets) {
    x.push_back(bucket.middle());
    y.push_back(rounded(bucket.mean()));
    low.push_back(rounded(bucket.least));
    high.push_back(rounded(bucket.most));
    gathered = gathered || bucket.count > 1;
  }
  for (const double value : series.smoothed()) smooth.push_back(rounded(value));
  Json curve{{"a", buckets.front().first}, {"b", buckets.back().last}, {"x", x}, {"y", y}, {"s", smooth}};
  if (gathered) curve["lo"] = low, curve["hi"] = high;
  return curve;
}

/// "section.key" → value, from the config in a run's facts.
Json options_of(const ReportedRun& run) {
  Json options = Json::object();
  const std::function<void(const std::string&, const Json&)> walk = [&](const std::string& key, const Json& value) {
    if (!value.is_object()) {
      options[key] = value.dump(-1, ' ', false, Json::error_handler_t::replace);
      return;
    }
    for (const auto& [name, below] : value.items()) walk(key.empty() ? name : key + "." + name, below);
  };
  if (run.facts.is_object() && run.facts.contains("config")) walk("", run.facts["config"]);
  return options;
}

Json data_of(const ReportedRun& run) {
  const RunHistory& history = *run.history;
  Json facts = run.facts.is_object() ? run.facts : Json::object();
  facts.erase("config");
  Json newest = Json::object(), series = Json::object(), events = Json::array();
  for (const char* key : kCurves) {
    if (!history.series(key).empty()) series[key] = curve_of(history.series(key));
    if (const std::optional<double> value = history.newest(key)) newest[key] = shown(*value);
  }
  for (const std::string& key : history.statistics()) {
    if (!history.series(key).empty()) series[key] = curve_of(history.series(key));
  }
  for (const char* key : {"tokens_seen", "skipped_steps", "restarts"}) {
    if (const std::optional<double> value = history.newest(key)) newest[key] = shown(*value);
  }
  for (const LoggedEvent& event : history.events()) events.push_back({event.step, event.text});
  const bool continues = run.status == CompletionStatus::going_on;
  return {{"name", run.name},
          {"title", title_of(run)},
          {"status", status_of(run.status)},
          {"written", run.written},
          {"eta", continues && run.eta_seconds > 0 ? human_duration(run.eta_seconds) : ""},
          {"step", history.last_step()},
          {"newest", newest},
          {"series", series},
          {"statistics", history.statistics()},
          {"events", events},
          {"facts", facts},
          {"config", options_of(run)}};
}

/// Shown by a browser without JavaScript.
std::string plain_numbers(const std::vector<ReportedRun>& runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    const Json loss = shown(run.history->newest("loss").value_or(NAN));
    rows += fmt::format("<tr><td>{}</td><td>step {}</td><td>loss {}</td></tr>", escaped_html(printable(run.name)),
                        run.history->last_step(), loss.is_string() ? loss.get<std::string>() : loss.dump());
  }
  return "<table>" + rows + "</table>";
}

/// Escaped for use in a script element.
std::string embedded(const Json& data) {
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at)) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace

std::string escaped_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    constexpr std::pair<char, const char*> kEscapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
    const auto* found =
        std::find_if(std::begin(kEscapes), std::end(kEscapes), [&](auto& one) { return one.first == c; });
    found == std::end(kEscapes) ? escaped += c : escaped += found->second;
  }
  return escaped;
}

std::string render_page(const std::vector<ReportedRun>& runs) {
  const ReportedRun& first = runs.at(0);
  const bool alone = runs.size() == 1;
  const bool reloads = alone && first.status == CompletionStatus::going_on;
  Json data{{"reload", reloads}, {"written", first.written > 0 ? "Written " + local_time(first.written) : ""}};
  for (const ReportedRun& run : runs) data["runs"].push_back(data_of(run));
  std::string page;
  std::string_view rest = kPageHtml;
  const auto put = [&](std::string_view name, const std::string& text) {
    const size_t at = rest.find(name);
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + name.size());
  };
  put("{{mark}}", std::string(kPageMark));
  put("{{refresh}}", reloads ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", kReloadSeconds) : "");
  put("{{title}}", escaped_html(alone ? printable(title_of(first)) : fmt::format("{} runs", runs.size())));
  put("{{numbers}}", plain_numbers(runs));
  put("{{runs}}", embedded(data));
  return page + std::string(rest);
}

}  // namespace titan
