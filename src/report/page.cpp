#include "titan/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "chart.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/report/step_report.h"

namespace titan {
namespace {

constexpr int kReloadSeconds = 30;

struct Standing {
  const char* kind;
  const char* words;
};

Standing describe(RunStatus standing) {
  switch (standing) {
    case RunStatus::going_on:
      return {"going", "running"};
    case RunStatus::finished:
      return {"done", "finished"};
    case RunStatus::stopped:
      return {"halt", "stopped"};
    case RunStatus::broken_off:
      return {"broken", "ended by an error"};
    case RunStatus::unknown:
      break;
  }
  return {"plain", ""};
}

/// A fact as text; empty when it is not there.
std::string fact(const RunView& run, const std::string& key) {
  if (!run.facts.is_object() || !run.facts.contains(key)) return {};
  const nlohmann::ordered_json& value = run.facts[key];
  return value.is_string() ? value.get<std::string>() : value.is_null() ? std::string() : value.dump();
}

std::optional<int64_t> whole_fact(const RunView& run, const std::string& key) {
  if (!run.facts.is_object() || !run.facts.contains(key) || !run.facts[key].is_number_integer()) return std::nullopt;
  return run.facts[key].get<int64_t>();
}

std::string title_of(const RunView& run) {
  const std::string description = fact(run, "description");
  return description.empty() || description == "default job" ? run.name : description;
}

// ------------------------------------------------------------------------------------------------- numbers

struct Number {
  std::string name, value, more;
};

std::string text_of(const std::optional<double>& value, double factor = 1) {
  if (!value) return "–";
  return std::isfinite(*value) ? short_number(*value * factor) : std::isnan(*value) ? "NaN" : *value > 0 ? "∞" : "−∞";
}

std::string smoothed_loss(const RunHistory& history) {
  const std::optional<double> newest = history.newest("loss");
  // A loss that is not finite any more must not be smoothed away.
  if (!newest || !std::isfinite(*newest)) return text_of(newest);
  return fmt::format("{:.4f}", history.series("loss").smoothed().back());
}

std::vector<Number> numbers_of(const RunView& run) {
  const RunHistory& history = *run.history;
  const std::optional<int64_t> steps = whole_fact(run, "steps");
  std::vector<Number> numbers{
      {"step", with_thousands(history.last_step()), steps ? "of " + with_thousands(*steps) : std::string()},
      {"loss, smoothed", smoothed_loss(history), ""}};
  if (const auto loss = history.newest("validation_loss")) numbers.push_back({"validation loss", text_of(loss), ""});
  numbers.push_back({"tokens seen", text_of(history.newest("tokens_seen")), ""});
  numbers.push_back({"speed", text_of(history.newest("tps")), "tokens/s/device"});
  if (const auto mfu = history.newest("mfu_percent")) numbers.push_back({"MFU", text_of(mfu), "%"});
  numbers.push_back({"peak memory", text_of(history.newest("memory_peak_bytes"), 1 / kGiB), "GiB"});
  const double skipped = history.newest("skipped_steps").value_or(0);
  if (skipped > 0) numbers.push_back({"steps left out", text_of(skipped), ""});
  if (run.standing == RunStatus::going_on && run.eta_seconds > 0) {
    numbers.push_back({"time left", human_duration(run.eta_seconds), ""});
  }
  return numbers;
}

std::string tiles(const RunView& run) {
  std::string html = "<div class=\"tiles\">";
  for (const Number& number : numbers_of(run)) {
    html += fmt::format("<div class=\"tile\"><span>{}</span><b>{}<small>{}</small></b></div>", number.name,
                        escaped_html(number.value), number.more);
  }
  html += "</div>\n";
  const std::optional<int64_t> steps = whole_fact(run, "steps");
  if (!steps || *steps < 1) return html;
  const double share = std::min(1.0, static_cast<double>(run.history->last_step()) / static_cast<double>(*steps));
  return html + fmt::format("<div class=\"bar\"><i style=\"width:{:.2f}%\"></i></div>\n", 100 * share);
}

/// The numbers of all runs, a row each.
std::string comparison(const std::vector<RunView>& runs) {
  std::vector<std::string> names;
  for (const RunView& run : runs) {
    for (const Number& number : numbers_of(run)) {
      if (std::find(names.begin(), names.end(), number.name) == names.end()) names.push_back(number.name);
    }
  }
  std::string html = "<div class=\"card scroll numbers\"><table><tr><th>run</th>";
  for (const std::string& name : names) html += "<th>" + name + "</th>";
  html += "</tr>";
  for (size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<tr><td><i class=\"key\" style=\"background:var(--c{})\"></i>{}</td>",
                        i % static_cast<size_t>(kPageColours), escaped_html(runs[i].name));
    const std::vector<Number> numbers = numbers_of(runs[i]);
    for (const std::string& name : names) {
      const auto found = std::find_if(numbers.begin(), numbers.end(), [&](const Number& n) { return n.name == name; });
      html += found == numbers.end()
                  ? "<td></td>"
                  : fmt::format("<td>{} <small>{}</small></td>", escaped_html(found->value), found->more);
    }
    html += "</tr>";
  }
  return html + "</table></div>\n";
}

// -------------------------------------------------------------------------------------------------- curves

struct ChartOf {
  const char* key;
  ChartStyle style;
  const char* points = nullptr;
};

/// All charts cover the same steps, so that a curve without newer values shows it.
StepRange steps_of(const std::vector<RunView>& runs, const std::array<ChartOf, 8>& all) {
  StepRange steps{INT64_MAX, 0};
  for (const RunView& run : runs) {
    for (const ChartOf& one : all) {
      for (const char* key : {one.key, one.points}) {
        if (!key || run.history->series(key).empty()) continue;
        const std::vector<Series::Bucket>& buckets = run.history->series(key).buckets();
        steps = {std::min(steps.first, buckets.front().first), std::max(steps.last, buckets.back().last)};
      }
    }
  }
  return steps;
}

std::string charts(const std::vector<RunView>& runs) {
  const std::array<ChartOf, 8> all{{
      {"loss", {"Loss", "", 1, /*smooth=*/true, false}, "validation_loss"},
      {"lr", {"Learning rate", "", 1, false, /*from_zero=*/true}},
      {"grad_norm", {"Gradient norm", "", 1, true, true}},
      {"tps", {"Throughput", " tokens/s/device", 1, false, true}},
      {"mfu_percent", {"Model FLOPS utilisation", " %", 1, false, true}},
      {"memory_peak_bytes", {"Peak memory", " GiB", 1 / kGiB, false, true}},
      {"step_seconds", {"Time of a step", " ms", 1e3, false, true}},
      {"data_wait_seconds", {"Waiting for data, per step", " ms", 1e3, false, true}},
  }};
  const StepRange steps = steps_of(runs, all);
  std::string html = "<div class=\"charts\">\n";
  for (const ChartOf& one : all) {
    std::vector<ChartCurve> curves;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Series* const points = one.points ? &runs[i].history->series(one.points) : nullptr;
      curves.push_back({&runs[i].history->series(one.key), points,
                        static_cast<int>(i % static_cast<size_t>(kPageColours)), runs.size() > 1 ? runs[i].name : ""});
    }
    html += chart(one.style, curves, steps);
  }
  return html + "</div>\n";
}

// --------------------------------------------------------------------------------------------------- words

std::string table_row(const std::string& name, const std::string& value) {
  return value.empty() ? "" : fmt::format("<tr><td>{}</td><td>{}</td></tr>", name, escaped_html(value));
}

std::string facts_table(const RunView& run) {
  std::string rows;
  for (const auto& [name, key] :
       {std::pair("model", "model"), std::pair("parameters", "parameters"),
        std::pair("tokens per step", "tokens_per_step"), std::pair("device", "device"),
        std::pair("device memory", "device_memory"), std::pair("ranks", "ranks"), std::pair("layout", "layout"),
        std::pair("threads per rank", "threads"), std::pair("host", "host"), std::pair("started", "started"),
        std::pair("data", "data"), std::pair("folder", "folder"), std::pair("titan_train", "version")}) {
    rows += table_row(name, fact(run, key));
  }
  return rows.empty() ? "" : "<h2>Model and hardware</h2>\n<div class=\"card\"><table>" + rows + "</table></div>\n";
}

std::string events_table(const RunHistory& history) {
  if (history.events().empty()) return {};
  std::string rows;
  for (auto event = history.events().rbegin(); event != history.events().rend(); ++event) {
    rows += table_row("step " + with_thousands(event->step), event->text);
  }
  return "<h2>Events</h2>\n<div class=\"card\"><table>" + rows + "</table></div>\n";
}

std::string sample(const RunView& run) {
  const std::string text = fact(run, "sample");
  if (text.empty()) return {};
  return fmt::format("<h2>What it reads</h2>\n<div class=\"card\"><pre class=\"wrap\">{}</pre></div>\n",
                     escaped_html(text));
}

/// "section.key" → value, of the config in a run's facts.
std::map<std::string, std::string> options_of(const RunView& run) {
  std::map<std::string, std::string> options;
  if (!run.facts.is_object() || !run.facts.contains("config")) return options;
  const std::function<void(const std::string&, const nlohmann::ordered_json&)> walk =
      [&](const std::string& key, const nlohmann::ordered_json& value) {
        if (!value.is_object()) {
          options[key] = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
          return;
        }
        for (const auto& [name, below] : value.items()) walk(key.empty() ? name : key + "." + name, below);
      };
  walk("", run.facts["config"]);
  return options;
}

std::string config(const RunView& run) {
  std::string text, section;
  for (const auto& [key, value] : options_of(run)) {
    const size_t dot = key.rfind('.');
    const std::string here = dot == std::string::npos ? "" : key.substr(0, dot);
    if (here != section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", here);
    section = here;
    text += fmt::format("{} = {}\n", key.substr(dot + 1), value);
  }
  if (text.empty()) return {};
  return fmt::format(
      "<h2>Config</h2>\n<details class=\"card\"><summary>All options in force</summary><pre>{}</pre>"
      "</details>\n",
      escaped_html(text));
}

/// Options that not all runs have alike.
std::string differences(const std::vector<RunView>& runs) {
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> keys;
  for (const RunView& run : runs) {
    all.push_back(options_of(run));
    if (all.back().empty()) return {};  // nothing is known of this one
    for (const auto& [key, value] : all.back()) keys.insert(key);
  }
  std::string rows;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    std::string cells;
    for (const auto& options : all) {
      const auto found = options.find(key);
      const std::string value = found == options.end() ? "" : found->second;
      values.insert(value);
      cells += "<td>" + escaped_html(value) + "</td>";
    }
    if (values.size() > 1) rows += fmt::format("<tr><td>{}</td>{}</tr>", escaped_html(key), cells);
  }
  if (rows.empty()) return {};
  std::string head;
  for (const RunView& run : runs) head += "<th>" + escaped_html(run.name) + "</th>";
  return "<h2>Where the configs differ</h2>\n<div class=\"card scroll\"><table><tr><th>option</th>" + head + "</tr>" +
         rows + "</table></div>\n";
}

// ---------------------------------------------------------------------------------------------------- page

std::string badge(const RunView& run) {
  const Standing standing = describe(run.standing);
  if (*standing.words == '\0') return {};
  const bool goes_on = run.standing == RunStatus::going_on && run.written > 0;
  return fmt::format("<span class=\"badge {}\"{}>{}</span>", standing.kind,
                     goes_on ? fmt::format(" data-written=\"{:.0f}\"", run.written) : "", standing.words);
}

std::string heading(const RunView& run) {
  std::vector<std::string> about;
  for (const char* key : {"model", "device", "folder"}) {
    if (const std::string text = fact(run, key); !text.empty()) about.push_back(text);
  }
  return fmt::format("<header><div class=\"top\"><h1>{}</h1>{}</div><p>{}</p></header>\n", escaped_html(title_of(run)),
                     badge(run), escaped_html(join(about, " · ")));
}

std::string heading(const std::vector<RunView>& runs) {
  std::string legend;
  for (size_t i = 0; i < runs.size(); ++i) {
    legend += fmt::format("<li><i class=\"key\" style=\"background:var(--c{})\"></i>{} {}</li>",
                          i % static_cast<size_t>(kPageColours), escaped_html(runs[i].name), badge(runs[i]));
  }
  return fmt::format("<header><h1>{} runs side by side</h1><ul class=\"legend\">{}</ul></header>\n", runs.size(),
                     legend);
}

}  // namespace

std::string escaped_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string render_page(const std::vector<RunView>& runs) {
  const RunView& first = runs.at(0);
  const bool alone = runs.size() == 1;
  const bool goes_on = alone && first.standing == RunStatus::going_on;
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n{}\n{}<title>{}</title>\n<style>{}</style></"
      "head>\n<body><main>\n",
      kPageMark, goes_on ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", kReloadSeconds) : "",
      escaped_html(alone ? title_of(first) : fmt::format("{} runs", runs.size())), kPageStyle);
  html += alone ? heading(first) + tiles(first) : heading(runs) + comparison(runs);
  html += charts(runs);
  if (alone) {
    html += events_table(*first.history) + facts_table(first) + sample(first) + config(first);
  } else {
    html += differences(runs);
  }
  html += fmt::format("<footer>{}</footer>\n", first.written > 0 ? "Written " + local_time(first.written) : "");
  return html + "</main><script>" + kPageScript + "</script></body></html>\n";
}

}  // namespace titan
