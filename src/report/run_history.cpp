#include "titan/report/run_history.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr std::array kNumbers{"tokens_seen", "skipped_steps", "tflops", "data_bad_records", "data_loops"};

const std::string kStatistics = "statistics.";

/// A number, or the string that metrics.jsonl has for a non-finite value.
std::optional<double> number_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  return text == "-inf" ? std::optional(-std::numeric_limits<double>::infinity()) : std::nullopt;
}

std::string spike_text(const nlohmann::json& line) {
  const double loss = number_of(line.value("loss_deviations", nlohmann::json())).value_or(0);
  const double norm = number_of(line.value("grad_norm_deviations", nlohmann::json())).value_or(0);
  const bool skipped = line.contains("skipped") && line["skipped"] == true;
  return fmt::format("spike: loss {:+.1f}σ, gradient norm {:+.1f}σ{}", loss, norm, skipped ? ", step skipped" : "");
}

std::string straggler_text(const nlohmann::json& line) {
  const double ratio = number_of(line.value("ratio", nlohmann::json())).value_or(0);
  return fmt::format("rank {} on {} is slow: {:.2f} times the median's compute time", line.value("rank", int64_t{0}),
                     line.value("host", "?"), ratio);
}

std::string words_of(std::string_view key) {
  if (key == "grad_norm") return "gradient norm";
  std::string words(key);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string not_finite_text(const LoggedEvent& event) {
  std::string text = words_of(event.key) + " is not finite";
  if (event.until > event.step) text += fmt::format(", up to step {}", with_thousands(event.until));
  return text;
}

bool is_training_line(std::string_view line) {
  return line.find("\"loss\":") != std::string_view::npos && line.find("\"event\":") == std::string_view::npos;
}

}  // namespace

void RunHistory::add(const nlohmann::json& line) {
  const int64_t step = line.at("step").get<int64_t>();
  if (line.contains("event")) {
    if (line["event"] == "spike") note(step, spike_text(line));
    if (line["event"] == "straggler") note(step, straggler_text(line));
    if (line["event"] == "sample") note(step, "sample: " + line.value("prompt", "") + line.value("text", ""));
    if (line["event"] == "restart") add_restart(step, line);
    return;
  }
  const bool is_step = line.contains("loss");
  if (is_step && step <= last_step_) {
    rewind(step);
    note(step, step == 1 ? "restarted from step 1" : fmt::format("resumed from step {}", with_thousands(step - 1)));
  }
  if (is_step) last_step_ = step;
  for (const char* key : kCurves) {
    const auto found = line.find(key);
    if (found == line.end()) continue;
    add_value(key, step, *found);
  }
  if (const auto found = line.find("statistics"); found != line.end() && found->is_object()) {
    for (const auto& [name, values] : found->items()) {
      if (!values.is_array()) add_value(kStatistics + name, step, values);
      for (size_t i = 0; values.is_array() && i < values.size(); ++i) {
        add_value(fmt::format("{}{}[{}]", kStatistics, name, i), step, values[i]);
      }
    }
  }
  for (const char* key : kNumbers) {
    const auto found = line.find(key);
    if (found != line.end() && found->is_number()) newest_[key] = found->get<double>();
  }
}

void RunHistory::add_restart(int64_t step, const nlohmann::json& line) {
  newest_["restarts"] = newest("restarts").value_or(0) + 1;
  const auto number = [&](const char* key) { return number_of(line.value(key, nlohmann::json())).value_or(0); };
  const nlohmann::json why = line.value("why", nlohmann::json());
  LoggedEvent event{
      step,
      fmt::format("restarted from step {}: {}; lost {:.0f} steps and {} of training, down for {}",
                  with_thousands(step - 1), why.is_string() ? why.get<std::string>() : "", number("lost_steps"),
                  human_duration(number("lost_seconds")), human_duration(number("down_seconds"))),
      {},
      0};
  event.stays = true;
  add_event(std::move(event));
}

void RunHistory::add_value(const std::string& key, int64_t step, const nlohmann::json& given) {
  const std::optional<double> value = number_of(given);
  if (!value) return;
  if (key.starts_with(kStatistics) && !series_.contains(key) && number_of_statistics() == kMostStatistics) return;
  series_[key].add(step, *value);
  newest_[key] = *value;
  if (std::isfinite(*value)) {
    not_finite_.erase(key);
  } else {
    note_not_finite(key, step);
  }
}

size_t RunHistory::number_of_statistics() const {
  return static_cast<size_t>(std::count_if(series_.begin(), series_.end(),
                                           [](const auto& one) { return one.first.starts_with(kStatistics); }));
}

std::vector<std::string> RunHistory::statistics() const {
  std::vector<std::string> keys;
  for (const auto& [key, series] : series_) {
    if (key.starts_with(kStatistics)) keys.push_back(key);
  }
  return keys;
}

bool RunHistory::add_line(std::string_view line) {
  const nlohmann::json parsed = parse_json(line, /*allow_exceptions=*/false);
  const nlohmann::json step = parsed.is_object() ? parsed.value("step", nlohmann::json()) : nlohmann::json();
  const bool known = step.is_number_integer() && step >= 1;
  if (known) add(parsed);
  unread_lines_ += known ? 0 : 1;
  return known;
}

const Series& RunHistory::series(const std::string& key) const {
  static const Series none;
  const auto found = series_.find(key);
  return found == series_.end() ? none : found->second;
}

std::optional<double> RunHistory::newest(const std::string& key) const {
  const auto found = newest_.find(key);
  return found == newest_.end() ? std::nullopt : std::optional(found->second);
}

/// Drops everything from `step` onwards.
void RunHistory::rewind(int64_t step) {
  for (auto& [key, series] : series_) series.rewind(step);
  std::erase_if(events_, [&](const LoggedEvent& event) { return event.step >= step && !event.stays; });
  not_finite_.clear();
  for (LoggedEvent& event : events_) {
    if (event.stays || event.until < step - 1) continue;
    event.until = step - 1;
    event.text = not_finite_text(event);
    not_finite_.insert(event.key);
  }
}

/// Merges consecutive steps into one event; otherwise they would displace all others.
void RunHistory::note_not_finite(const std::string& key, int64_t step) {
  const auto begun =
      std::find_if(events_.rbegin(), events_.rend(), [&](const LoggedEvent& event) { return event.key == key; });
  if (not_finite_.insert(key).second || begun == events_.rend()) {
    LoggedEvent event{step, {}, key, step};
    event.text = not_finite_text(event);
    add_event(std::move(event));
  } else {
    begun->until = step;
    begun->text = not_finite_text(*begun);
  }
}

void RunHistory::note(int64_t step, std::string text) {
  if (events_.empty() || events_.back().step != step || events_.back().text != text) {
    add_event({step, std::move(text), {}, 0});
  }
}

void RunHistory::add_event(LoggedEvent event) {
  events_.push_back(std::move(event));
  if (events_.size() > kMostEvents) events_.pop_front();
}

RunHistory read_history(const std::filesystem::path& path, std::optional<int64_t> before_step, size_t most_bytes) {
  RunHistory history;
  std::error_code reason;
  const bool is_there = std::filesystem::exists(path, reason);
  if (is_there && !std::filesystem::is_regular_file(path, reason)) {  // opening a pipe would block for ever
    throw Error(ExitCode::bad_data, fmt::format("cannot read {}: it is not a regular file", path.string()));
  }
  refuse_kind(file_kind_at(path), path, ExitCode::bad_data);
  const auto size = std::filesystem::file_size(path, reason);
  std::ifstream file;
  if (is_there) file.open(path, std::ios::binary);
  if (!file.is_open() || !file || reason) read_file(path, ExitCode::bad_data);  // for its error: it says why
  const size_t stride = std::max<size_t>(1, (size + most_bytes - 1) / most_bytes);
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (is_training_line(line) && number++ % stride != 0) continue;
    if (!before_step) {
      history.add_line(line);
      continue;
    }
    const nlohmann::json parsed = parse_json(line, /*allow_exceptions=*/false);
    if (parsed.is_object() && parsed.value("step", nlohmann::json()).is_number_integer() &&
        (parsed["step"] < *before_step || parsed.value("event", nlohmann::json()) == "restart")) {
      history.add_line(line);
    }
  }
  return history;
}

void Series::add(int64_t step, double value) {
  if (!std::isfinite(value)) return;
  if (!buckets_.empty() && buckets_.back().first / width_ == step / width_) {
    Bucket& bucket = buckets_.back();
    bucket.last = std::max(bucket.last, step);
    bucket.sum += value;
    bucket.least = std::min(bucket.least, value);
    bucket.most = std::max(bucket.most, value);
    ++bucket.count;
    return;
  }
  if (buckets_.size() == kMostBuckets) {
    widen();
    return add(step, value);
  }
  buckets_.push_back({step, step, value, value, value, 1});
}

void Series::rewind(int64_t step) {
  while (!buckets_.empty() && buckets_.back().first >= step) buckets_.pop_back();
  if (!buckets_.empty()) buckets_.back().last = std::min(buckets_.back().last, step - 1);
}

void Series::widen() {
  width_ *= 2;
  std::vector<Bucket> merged;
  for (const Bucket& bucket : buckets_) {
    if (merged.empty() || merged.back().first / width_ != bucket.first / width_) {
      merged.push_back(bucket);
      continue;
    }
    Bucket& before = merged.back();
    before.last = bucket.last;
    before.sum += bucket.sum;
    before.least = std::min(before.least, bucket.least);
    before.most = std::max(before.most, bucket.most);
    before.count += bucket.count;
  }
  buckets_ = std::move(merged);
}

std::vector<double> Series::smoothed() const {
  const double keep = std::exp(-1.0 / std::max(1.0, static_cast<double>(buckets_.size()) / 100));
  double sum = 0, weight = 0;
  auto pass = [&](const Bucket& bucket) {
    sum = keep * sum + bucket.sum;
    weight = keep * weight + static_cast<double>(bucket.count);
  };
  std::vector<double> values, weights;
  for (const Bucket& bucket : buckets_) {
    pass(bucket);
    values.push_back(sum);
    weights.push_back(weight);
  }
  sum = weight = 0;
  for (size_t i = buckets_.size(); i-- > 0;) {
    values[i] = (values[i] + keep * sum) / (weights[i] + keep * weight);
    pass(buckets_[i]);
  }
  return values;
}

}  // namespace titan
