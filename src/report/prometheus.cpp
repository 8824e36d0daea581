#include "titan/report/prometheus.h"

#include <cmath>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

std::string escaped(const std::string& text) {
  std::string label;
  for (const char c : text) {
    if (c == '\\' || c == '"') label += '\\';
    label += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return label;
}

/// Non-finite values in the format's spelling.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

class Page {
 public:
  explicit Page(const std::string& run) : label_(fmt::format("{{run=\"{}\"}}", escaped(run))) {}

  void gauge(const char* name, const char* help, double value) { add(name, "gauge", help, value); }
  void counter(const char* name, const char* help, double value) { add(name, "counter", help, value); }
  void statistics(const std::vector<Statistic>& all) {
    if (!all.empty())
      text_ +=
          "# HELP titan_statistic Numbers that model and optimizer report (docs/metrics.md).\n# TYPE titan_statistic "
          "gauge\n";
    for (const Statistic& statistic : all) {
      for (size_t i = 0; i < statistic.values.size(); ++i) {
        text_ += fmt::format("titan_statistic{}name=\"{}\"}} {}\n", label_.substr(0, label_.size() - 1) + ",",
                             escaped(statistic.name_of(i)), number(statistic.values[i]));
      }
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  void add(const char* name, const char* type, const char* help, double value) {
    text_ += fmt::format("# HELP titan_{0} {1}\n# TYPE titan_{0} {2}\ntitan_{0}{3} {4}\n", name, help, type, label_,
                         number(value));
  }

  std::string label_;
  std::string text_;
};

void add_step(Page& page, const StepReport& r) {
  page.gauge("step", "Newest step that was reported.", static_cast<double>(r.step));
  page.gauge("steps_total", "Steps that the run is to make.", static_cast<double>(r.total_steps));
  page.gauge("loss", "Loss of that step, mean over its valid tokens.", r.loss);
  page.gauge("grad_norm", "Norm of all gradients before clipping.", r.grad_norm);
  page.gauge("learning_rate", "Learning rate of that step.", r.learning_rate);
  page.gauge("tokens_per_second", "Tokens per second of one device.", r.tokens_per_second);
  if (r.peak_flops) page.gauge("mfu_ratio", "Share of the device's dense bf16 peak.", utilisation(r));
  page.gauge("step_seconds", "Wall time of a step.", r.step_seconds);
  page.gauge("data_wait_seconds", "Time of a step spent waiting for data.", r.data_wait_seconds);
  page.gauge("memory_peak_bytes", "Peak memory since the report before.", static_cast<double>(r.memory_bytes));
  page.gauge("memory_total_bytes", "Memory of the device.", static_cast<double>(r.memory_total));
  page.gauge("eta_seconds", "Time left at this pace.", r.eta_seconds);
  page.counter("tokens_seen_total", "Tokens trained on.", static_cast<double>(r.tokens_seen));
  page.counter("skipped_steps_total", "Steps left out.", static_cast<double>(r.skipped_steps));
  page.statistics(r.statistics);
  page.counter("bad_records_total", "Records of the corpus left out.", static_cast<double>(r.bad_records));
}

}  // namespace

std::string prometheus_text(const PrometheusState& state) {
  Page page(state.run);
  page.gauge("running", "1 while the run is running, 0 after its end.", state.running ? 1 : 0);
  page.gauge("updated_timestamp_seconds", "When this was written.", state.now);
  if (state.step) add_step(page, *state.step);
  if (state.validation) {
    page.gauge("validation_step", "Step of the newest validation.", static_cast<double>(state.validation->step));
    page.gauge("validation_loss", "Loss of the newest validation.", state.validation->loss);
  }
  return std::move(page).text();
}

PrometheusFile::PrometheusFile(std::filesystem::path path, std::string run, const Log& log)
    : path_(std::move(path)), state_{std::move(run)}, log_(log) {}

void PrometheusFile::add(const StepReport& report, double now) {
  state_.step = report;
  write(now, /*at_once=*/false);
}

void PrometheusFile::add(const ValidationReport& report, double now) {
  state_.validation = report;
  write(now, /*at_once=*/true);
}

void PrometheusFile::finish(double now) {
  state_.running = false;
  write(now, /*at_once=*/true);
}

void PrometheusFile::write(double now, bool at_once) {
  if (!at_once && now - last_write_ >= 0 && now - last_write_ < 1) return;
  last_write_ = state_.now = now;
  try {
    std::error_code ignored;  // if it fails, so does writing the file, which says why
    std::filesystem::create_directories(path_.parent_path(), ignored);
    replace_file(path_, prometheus_text(state_));
  } catch (const std::exception& error) {
    if (std::exchange(warned_, true)) return;
    log_.warning("metrics.prometheus_file: {}; training continues without it", error.what());
  }
}

}  // namespace titan
