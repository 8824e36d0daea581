// A curve of bounded size: values by step, gathered in at most kMostBuckets buckets of equally many steps, whose width
// doubles whenever they get too many. Adding is O(1) on average, however long the run.
#pragma once

#include <cstddef>
#include <cstdint>
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

  /// Steps do not fall; see rewind. What is not finite is left out.
  void add(int64_t step, double value);
  /// The run is back at `step`: what was added for it and later steps is dropped, as far as buckets tell it apart.
  void rewind(int64_t step);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool empty() const { return buckets_.empty(); }
  /// The means, smoothed: averages over the buckets on both sides, weighted by their counts and less with distance (by
  /// e in a hundredth of the curve). They do not lag behind a slope and owe nothing to where it began.
  std::vector<double> smoothed() const;

 private:
  void widen();

  int64_t width_ = 1;  // steps of a bucket
  std::vector<Bucket> buckets_;
};

}  // namespace titan
