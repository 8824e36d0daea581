// A curve of bounded size: values by step in at most kMostBuckets buckets of equally many steps. When there are too
// many, the bucket width doubles. Adding is amortised O(1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

class Series {
 public:
  /// The page draws a curve 1,000 units wide: more points would not be seen, and make the page longer.
  static constexpr size_t kMostBuckets = 800;

  struct Bucket {
    int64_t first = 0;  // first and last step with a value in it
    int64_t last = 0;
    double sum = 0;
    double least = 0;
    double most = 0;
    int64_t count = 0;  // of finite values; at least 1

    double mean() const { return sum / static_cast<double>(count); }
    double middle() const { return 0.5 * (static_cast<double>(first) + static_cast<double>(last)); }
  };

  /// Steps must not decrease; see rewind. Values that are not finite are skipped.
  void add(int64_t step, double value);
  /// The run restarts at `step`: drops the values of this and later steps, to bucket resolution.
  void rewind(int64_t step);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool empty() const { return buckets_.empty(); }
  /// The smoothed means: averages over the buckets on both sides, weighted by count and by a factor that falls by e per
  /// hundredth of the curve. No lag on a slope, and no dependence on the first value.
  std::vector<double> smoothed() const;

 private:
  void widen();

  int64_t width_ = 1;  // steps per bucket
  std::vector<Bucket> buckets_;
};

// The history of a run for the page: bounded curves, events and the newest numbers. It is made from lines of
// metrics.jsonl, which are read from the file or passed on while the run writes them.

/// Keys of metrics.jsonl of which the page draws a curve each; those of statistics are added to them.
inline constexpr std::array kCurves{"loss",        "validation_loss",   "lr",           "grad_norm",        "tps",
                                    "mfu_percent", "memory_peak_bytes", "step_seconds", "data_wait_seconds"};

/// Something that happened at a step and that no curve shows.
struct LoggedEvent {
  int64_t step = 0;
  std::string text;
  std::string key;     ///< for non-finite values: the curve's key
  int64_t until = 0;   ///< for non-finite values: the last such step
  bool stays = false;  ///< also if the run goes back to an earlier step: it happened, and nothing undoes it
};

class RunHistory {
 public:
  /// The page lists them one below the other, and a run may have one at every step: the newest are kept.
  static constexpr size_t kMostEvents = 100;
  /// Each has a chart of its own. A model with a statistic for each layer has all of them in metrics.jsonl.
  static constexpr size_t kMostStatistics = 24;

  /// One line of metrics.jsonl. A step that is not after the previous one means that the run resumed: newer values
  /// replace older ones.
  void add(const nlohmann::json& line);
  /// The same for text. Counts a line that cannot be parsed (e.g. one truncated by a full disk) and returns false.
  bool add_line(std::string_view line);
  int64_t unread_lines() const { return unread_lines_; }

  const Series& series(const std::string& key) const;
  /// The value in the newest line that has it.
  std::optional<double> newest(const std::string& key) const;
  /// Keys of the curves of the model's statistics, by name: "statistics.balance", "statistics.load[3]". A page shows
  /// the first kMostStatistics of a run.
  std::vector<std::string> statistics() const;
  const std::deque<LoggedEvent>& events() const { return events_; }  // the newest, in order
  int64_t last_step() const { return last_step_; }
  bool empty() const { return last_step_ == 0; }

 private:
  void rewind(int64_t step);
  void note(int64_t step, std::string text);
  void add_event(LoggedEvent event);
  void add_restart(int64_t step, const nlohmann::json& line);
  size_t number_of_statistics() const;
  void add_value(const std::string& key, int64_t step, const nlohmann::json& value);
  void note_not_finite(const std::string& key, int64_t step);

  std::map<std::string, Series, std::less<>> series_;
  std::map<std::string, double, std::less<>> newest_;
  std::deque<LoggedEvent> events_;
  std::set<std::string, std::less<>> not_finite_;  // curves whose newest value is not finite
  int64_t last_step_ = 0;                          // the newest with a loss
  int64_t unread_lines_ = 0;
};

/// Reads a file in bounded time: above `most_bytes`, every k-th line of training and all other lines. `before_step`:
/// only lines before that step, and restarts, for a run that resumes there. Throws Error(bad_data) "cannot read PATH:
/// …".
RunHistory read_history(const std::filesystem::path& path, std::optional<int64_t> before_step = {},
                        size_t most_bytes = size_t{32} << 20);

}  // namespace titan
