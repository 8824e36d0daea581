#include "titan/report/series.h"

#include <algorithm>
#include <cmath>

namespace titan {

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
