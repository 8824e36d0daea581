// Key-value cache for generation: keys and values of the tokens read so far, so that later tokens attend to them
// without recomputing them. Holds those of all blocks on this rank, for one batch of samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace titan {

class KeyValueCache {
 public:
  /// Has room for `samples` samples of at most `capacity` tokens each. A block's memory is allocated at its first use.
  KeyValueCache(int64_t samples, int64_t capacity);

  /// Attention of block `block` over T new tokens: query [B, T, Hq, d], key and value [B, T, Hk, d] → [B, T, Hq, d].
  /// Writes key and value after those of the tokens read.
  at::Tensor attend(int64_t block, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

  /// Called after all blocks have processed the new tokens: the first `count` of each sample count as read. Later
  /// tokens overwrite the rest, which pads the shorter samples of a batch.
  void advance(const std::vector<int64_t>& count);
  int64_t capacity() const { return capacity_; }

 private:
  /// Consecutive samples of equal length.
  struct SampleRange {
    int64_t sample = 0, samples = 0, length = 0;
  };
  std::vector<SampleRange> ranges_of_equal_length() const;

  int64_t capacity_;
  std::vector<int64_t> lengths_;
  struct Block {
    at::Tensor keys, values;  // [B, capacity, Hk, d]
  };
  std::map<int64_t, Block> blocks_;
};

}  // namespace titan
