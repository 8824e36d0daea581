// A simulated step as a trace for a browser and as a picture.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "titan/estimate/simulate.h"
#include "titan/schedule/picture.h"

namespace titan {

std::string chrome_trace(const SimulatedStep& step) {
  nlohmann::json events = nlohmann::json::array();
  for (const SimulatedRank& rank : step.ranks) {
    for (const TimedEvent& event : rank.events) {
      events.push_back({{"name", event.name},
                        {"ph", "X"},
                        {"pid", rank.rank},
                        {"tid", event.track},
                        {"ts", 1e6 * event.begin},
                        {"dur", 1e6 * (event.end - event.begin)}});
    }
  }
  return nlohmann::json{{"traceEvents", events}}.dump();
}

std::string step_svg(const SimulatedStep& step, const std::vector<std::string>& lines) {
  // The width, in pixels, leaves room for the names of rows on a screen of 1,280. Pictures can be scaled, so any works.
  constexpr double kMilliseconds = 1e3, kWidth = 1100;
  TimeChart chart{.lines = lines,
                  .kinds = {{"forward", {111, 168, 220}},
                            {"backward", {124, 196, 127}},
                            {"weight gradients", {246, 178, 107}},
                            {"optimizer", {142, 124, 195}},
                            {"communication, copies", {118, 165, 175}},
                            {"waiting", {224, 102, 102}},
                            {"more passes, not drawn", {183, 183, 183}}},
                  .unit = " ms",
                  .end = kMilliseconds * step.seconds,
                  .scale = kWidth / (kMilliseconds * step.seconds)};
  for (const SimulatedRank& rank : step.ranks) {
    std::map<std::string, size_t> rows{{kComputeTrack, chart.rows.size()}};
    chart.rows.push_back({fmt::format("rank {} {}", rank.rank, kComputeTrack), ""});
    for (const TimedEvent& event : rank.events) {
      const auto [row, is_new] = rows.try_emplace(event.track, chart.rows.size());
      if (is_new) chart.rows.push_back({event.track, ""});
      chart.boxes.push_back({.row = row->second,
                             .begin = kMilliseconds * event.begin,
                             .end = kMilliseconds * event.end,
                             .kind = static_cast<size_t>(event.kind),
                             .title = event.name});
    }
  }
  return chart_svg(chart);
}

}  // namespace titan
