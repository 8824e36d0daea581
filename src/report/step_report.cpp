#include "titan/report/step_report.h"

#include <fmt/format.h>
#include <cmath>
#include <nlohmann/json.hpp>

#include "titan/base/json.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// ANSI colours of torchtitan's line; all empty when off.
struct Palette {
  explicit Palette(bool on) : on_(on) {}
  std::string paint(std::string_view code, const std::string& text) const {
    return on_ ? fmt::format("\x1b[{}m{}\x1b[39m", code, text) : text;
  }
  std::string red(const std::string& text) const { return paint("31", text); }
  std::string green(const std::string& text) const { return paint("32", text); }
  std::string yellow(const std::string& text) const { return paint("33", text); }
  std::string blue(const std::string& text) const { return paint("34", text); }
  std::string magenta(const std::string& text) const { return paint("35", text); }
  std::string cyan(const std::string& text) const { return paint("36", text); }
  std::string orange(const std::string& text) const { return paint("38;2;180;60;0", text); }
  std::string turquoise(const std::string& text) const { return paint("38;2;54;234;195", text); }

 private:
  bool on_;
};

std::string gibibytes(int64_t bytes) { return fmt::format("{:.2f}GiB", static_cast<double>(bytes) / kGiB); }

std::string memory_field(int64_t used, int64_t total) {
  const double share = total > 0 ? 100.0 * static_cast<double>(used) / static_cast<double>(total) : 0.0;
  return fmt::format("memory: {:5.2f}GiB({:.2f}%)", static_cast<double>(used) / kGiB, share);
}

/// JSON has no NaN or infinity; write them as strings, so that readers take them neither for numbers nor for missing.
nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/// Formats a non-negative number like Python's ",.2f": 1234.5 → "1,234.50".
std::string grouped(double value) {
  const std::string text = fmt::format("{:.2f}", value);
  const size_t point = text.find('.');
  return point == std::string::npos ? text : with_thousands(std::stoll(text)) + text.substr(point);
}

/// "name: 0.25", or "name: [0.25 0.5 … 8 values]".
std::string statistic_field(const Statistic& statistic) {
  constexpr size_t kMostShown = 8;  // experts of a small layer; a line with more is not read, and metrics.jsonl has all
  if (statistic.values.size() == 1) return fmt::format("{}: {:.4g}", statistic.name, statistic.values[0]);
  std::vector<std::string> shown;
  for (const double value : statistic.values) {
    if (shown.size() < kMostShown) shown.push_back(fmt::format("{:.4g}", value));
  }
  if (statistic.values.size() > kMostShown) shown.push_back(fmt::format("… {} values", statistic.values.size()));
  return fmt::format("{}: [{}]", statistic.name, fmt::join(shown, " "));
}

double teraflops(const StepReport& r) { return static_cast<double>(r.flops_per_token) * r.tokens_per_second / 1e12; }

/// Adds memory under TensorBoard's names: GiB and percent of the device.
void add_memory(std::vector<TaggedValue>& values, const std::string& prefix, const char* kind, int64_t used,
                int64_t total) {
  const auto bytes = static_cast<double>(used);
  values.push_back({fmt::format("{}memory/max_{}(GiB)", prefix, kind), bytes / kGiB});
  values.push_back(
      {fmt::format("{}memory/max_{}(%)", prefix, kind), total > 0 ? 100.0 * bytes / static_cast<double>(total) : 0.0});
}

}  // namespace

double utilisation(const StepReport& r) {
  return r.peak_flops ? static_cast<double>(r.flops_per_token) * r.tokens_per_second / *r.peak_flops : 0.0;
}

// ">" aligns "nan" and "inf" to the right like numbers, as Python does.
std::string console_line(const StepReport& r, bool colour) {
  const Palette p(colour);
  // Without a known peak there is no MFU. Keep the field, because parsers of the line expect it.
  const std::string mfu = r.peak_flops ? fmt::format("mfu: {:.2f}%", 100 * utilisation(r)) : "mfu: n/a";
  std::string line = fmt::format("{}  {}  {}  {}  {}  {}  {}", p.red(fmt::format("step: {:2}", r.step)),
                                 p.green(fmt::format("loss: {:>8.5f}", r.loss)),
                                 p.orange(fmt::format("grad_norm: {:>7.4f}", r.grad_norm)),
                                 p.turquoise(memory_field(r.memory_bytes, r.memory_total)),
                                 p.blue("tps: " + with_thousands(std::llround(r.tokens_per_second))),
                                 p.cyan("tflops: " + grouped(teraflops(r))), p.magenta(mfu));
  line += fmt::format("  lr: {:.2e}  data: {:.1f}ms  eta: {}", r.learning_rate, 1e3 * r.data_wait_seconds,
                      human_duration(r.eta_seconds));
  if (r.ranks) {
    line += fmt::format("  ranks: {:.1f}-{:.1f}ms {}-{}", 1e3 * r.ranks->fastest_step_seconds,
                        1e3 * r.ranks->slowest_step_seconds, gibibytes(r.ranks->least_memory_bytes),
                        gibibytes(r.ranks->most_memory_bytes));
  }
  if (r.skipped_steps > 0) line += fmt::format("  skipped: {}", r.skipped_steps);
  for (const Statistic& statistic : r.statistics) {
    if (statistic.on_console) line += "  " + statistic_field(statistic);
  }
  const bool starves = r.data_queue_depth > 0 && r.data_queue_ready == 0 && r.data_wait_seconds > 0.01 * r.step_seconds;
  if (starves) line += "  data queue: empty";
  if (r.bad_records > 0) line += fmt::format("  bad records: {}", r.bad_records);
  return line;
}

std::string dry_run_line(const StepReport& r) {
  return fmt::format("dry run, step {:2}: no loss, as nothing came from the other ranks; {}  computing: {:.1f}ms",
                     r.step, memory_field(r.memory_bytes, r.memory_total), 1e3 * r.step_seconds);
}

std::string json_line(const StepReport& r) {
  nlohmann::ordered_json line{{"step", r.step},
                              {"loss", json_number(r.loss)},
                              {"global_max_loss", json_number(r.max_loss)},
                              {"grad_norm", json_number(r.grad_norm)},
                              {"lr", r.learning_rate},
                              {"tps", json_number(r.tokens_per_second)},
                              {"step_seconds", r.step_seconds},
                              {"data_wait_seconds", r.data_wait_seconds},
                              {"memory_peak_bytes", r.memory_bytes},
                              {"memory_peak_rss_bytes", r.host_peak_bytes},
                              {"tokens_seen", r.tokens_seen},
                              {"tflops", json_number(teraflops(r))}};
  if (r.peak_flops) line["mfu_percent"] = json_number(100 * utilisation(r));
  line["data_queue_ready"] = r.data_queue_ready;
  line["data_queue_depth"] = r.data_queue_depth;
  line["data_documents"] = r.data_documents;
  line["data_tokens"] = r.data_tokens;
  line["data_bad_records"] = r.bad_records;
  line["data_long_conversations"] = r.long_conversations;
  line["data_loops"] = r.data_loops;
  line["skipped_steps"] = r.skipped_steps;
  for (const Statistic& statistic : r.statistics) {
    nlohmann::ordered_json& values = line["statistics"][statistic.name];
    for (const double value : statistic.values) values.push_back(json_number(value));
    if (statistic.values.size() == 1) values = json_number(statistic.values[0]);
  }
  if (r.ranks) {
    line["ranks"] = {{"fastest_step_seconds", json_number(r.ranks->fastest_step_seconds)},
                     {"slowest_step_seconds", json_number(r.ranks->slowest_step_seconds)},
                     {"least_memory_bytes", r.ranks->least_memory_bytes},
                     {"most_memory_bytes", r.ranks->most_memory_bytes}};
  }
  for (const StepReport::Purpose& purpose : r.memory_by_purpose) {
    line["memory_by_purpose"][purpose.name] = {{"planned_bytes", purpose.planned_bytes},
                                               {"actual_bytes", purpose.actual_bytes}};
  }
  return line.dump();
}

std::string console_line(const ValidationReport& r, bool colour) {
  const Palette p(colour);
  return fmt::format("{}  {}  {}  {}", p.yellow(fmt::format("validate step: {:2}", r.step)),
                     p.green(fmt::format("loss: {:>7.4f}", r.loss)),
                     p.turquoise(memory_field(r.memory_bytes, r.memory_total)),
                     p.blue("tps: " + with_thousands(std::llround(r.tokens_per_second))));
}

std::string json_line(const ValidationReport& r) {
  return nlohmann::ordered_json{{"step", r.step},
                                {"validation_loss", json_number(r.loss)},
                                {"validation_tps", json_number(r.tokens_per_second)},
                                {"memory_peak_bytes", r.memory_bytes}}
      .dump();
}

std::string json_line(const SpikeReport& r) {
  return nlohmann::ordered_json{{"step", r.step},
                                {"event", "spike"},
                                {"loss_deviations", json_number(r.loss_deviations)},
                                {"grad_norm_deviations", json_number(r.norm_deviations)},
                                {"skipped", r.skipped}}
      .dump();
}

std::string sentence(const StragglerReport& r) {
  std::string where = "host " + r.host;
  if (r.megahertz) where += fmt::format(", {:.0f} MHz", *r.megahertz);
  if (r.celsius) where += fmt::format(", {:.0f} °C", *r.celsius);
  return fmt::format(
      "rank {} ({}) has computed {:.2f} times as long as the median of {} ranks with the same work, for {} steps; all "
      "ranks wait for it",
      r.rank, where, r.ratio, r.ranks, r.steps);
}

std::string json_line(const StragglerReport& r) {
  nlohmann::ordered_json line{{"step", r.step},  {"event", "straggler"},          {"rank", r.rank},
                              {"host", r.host},  {"ratio", json_number(r.ratio)}, {"ranks", r.ranks},
                              {"steps", r.steps}};
  if (r.megahertz) line["megahertz"] = *r.megahertz;
  if (r.celsius) line["celsius"] = *r.celsius;
  return json_text(line);
}

std::string json_line(const SampleReport& r) {
  return json_text(
      nlohmann::ordered_json{{"step", r.step}, {"event", "sample"}, {"prompt", r.prompt}, {"text", r.text}});
}

std::vector<TaggedValue> tagged_values(const StepReport& r) {
  std::vector<TaggedValue> values{{"loss_metrics/global_avg_loss", r.loss},
                                  {"loss_metrics/global_max_loss", r.max_loss},
                                  {"throughput(tps)", r.tokens_per_second},
                                  {"tflops", teraflops(r)}};
  if (r.peak_flops) values.push_back({"mfu(%)", 100 * utilisation(r)});
  values.push_back({"time_metrics/end_to_end(s)", r.step_seconds});
  values.push_back({"time_metrics/data_loading(s)", r.data_wait_seconds});
  const double waited = r.step_seconds > 0 ? 100 * r.data_wait_seconds / r.step_seconds : 0;
  values.push_back({"time_metrics/data_loading(%)", waited});
  add_memory(values, "", "active", r.active_bytes, r.memory_total);
  add_memory(values, "", "reserved", r.memory_bytes, r.memory_total);
  values.push_back({"memory/num_alloc_retries", static_cast<double>(r.allocation_retries)});
  values.push_back({"memory/num_ooms", static_cast<double>(r.out_of_memory_count)});
  values.push_back({"grad_norm", r.grad_norm});
  values.push_back({"n_tokens_seen", static_cast<double>(r.tokens_seen)});
  values.push_back({"lr", r.learning_rate});
  values.push_back({"skipped_steps", static_cast<double>(r.skipped_steps)});
  for (const Statistic& statistic : r.statistics) {
    for (size_t i = 0; i < statistic.values.size(); ++i) {
      values.push_back({"statistics/" + statistic.name_of(i), statistic.values[i]});
    }
  }
  return values;
}

std::vector<TaggedValue> tagged_values(const ValidationReport& r) {
  const std::string prefix = "validation_metrics/";
  std::vector<TaggedValue> values{{prefix + "loss", r.loss}, {prefix + "throughput(tps)", r.tokens_per_second}};
  add_memory(values, prefix, "active", r.active_bytes, r.memory_total);
  add_memory(values, prefix, "reserved", r.memory_bytes, r.memory_total);
  return values;
}

}  // namespace titan
