// A curve of bounded size: values by step, in at most kMostBuckets buckets of equally many steps, whose width doubles
// when there are too many. Adding is O(1) on average, however long the run.
#pragma once

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
  static constexpr size_t kMostBuckets = 800;

  struct Bucket {
    int64_t first = 0;  // steps with a value in it
    int64_t last = 0;
    double sum = 0;
    double least = 0;
    double most = 0;
    int64_t count = 0;  // of finite values; buckets without any do not exist

    double mean() const { return sum / static_cast<double>(count); }
    double middle() const { return 0.5 * (static_cast<double>(first) + static_cast<double>(last)); }
  };

  /// Steps must not decrease; see rewind. Values that are not finite are skipped.
  void add(int64_t step, double value);
  /// The run is back at `step`: drops the values of this and later steps, to the resolution of the buckets.
  void rewind(int64_t step);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool empty() const { return buckets_.empty(); }
  /// The means, smoothed: averages over the buckets on both sides, weighted by their counts and less with distance (by
  /// e in a hundredth of the curve). They do not lag behind a slope and do not depend on the first value.
  std::vector<double> smoothed() const;

 private:
  void widen();

  int64_t width_ = 1;  // steps of a bucket
  std::vector<Bucket> buckets_;
};

// The history of a run as the page shows it: bounded curves, events and the newest numbers, from the lines of
// metrics.jsonl, read from the file or passed as they are written.

/// Something at a step that a curve does not show.
struct RunEvent {
  int64_t step = 0;
  std::string text;
  std::string key;    ///< the curve whose values were not finite, if that is the event
  int64_t until = 0;  ///< the last step of that
};

class RunHistory {
 public:
  static constexpr size_t kMostEvents = 100;

  /// One line of metrics.jsonl. A step that is not after the previous one means that the run was resumed: the newer
  /// values count.
  void add(const nlohmann::json& line);
  /// The same as text. A line that cannot be read (half a line that a full disk left) is only counted; returns false.
  bool add_line(std::string_view line);
  int64_t unread_lines() const { return unread_lines_; }

  const Series& series(const std::string& key) const;
  /// Of the newest line that has it.
  std::optional<double> newest(const std::string& key) const;
  const std::deque<RunEvent>& events() const { return events_; }  // the newest, in order
  int64_t last_step() const { return last_step_; }
  bool empty() const { return last_step_ == 0; }

 private:
  void rewind(int64_t step);
  void note(int64_t step, std::string text);
  void add_event(RunEvent event);
  void note_not_finite(const std::string& key, int64_t step);

  std::map<std::string, Series, std::less<>> series_;
  std::map<std::string, double, std::less<>> newest_;
  std::deque<RunEvent> events_;
  std::set<std::string, std::less<>> not_finite_;  // curves whose newest value is not
  int64_t last_step_ = 0;                          // of a line with a loss
  int64_t unread_lines_ = 0;
};

/// From a file, or as much of it as fits in bounded time: of a file above `most_bytes`, every k-th line of training and
/// all others. `before_step`: only lines before that step, for a run that resumes there. Throws Error(bad_data)
/// "cannot read PATH: …".
RunHistory read_history(const std::filesystem::path& path, std::optional<int64_t> before_step = {},
                        size_t most_bytes = size_t{32} << 20);

}  // namespace titan
