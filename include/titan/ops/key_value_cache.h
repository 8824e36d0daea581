// Keys and values of the tokens that a model has read, for generation: what comes next attends to them instead of being
// computed with them again. Holds what all blocks of this rank have of one batch of samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "titan/ops/attention.h"

namespace titan {

class KeyValueCache {
 public:
  /// Of `samples` samples, each of at most `capacity` tokens. Memory is allocated as blocks first use it.
  KeyValueCache(int64_t samples, int64_t capacity, AttentionKernel preferred = AttentionKernel::cudnn);

  /// Attention of block `block` over T tokens that follow those read: query [B, T, Hq, d], key and value [B, T, Hk, d]
  /// → [B, T, Hq, d]. Writes key and value behind those of the tokens read.
  at::Tensor attend(int64_t block, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

  /// All blocks have seen the tokens: `count` of each sample are read. What follows overwrites the others, which filled
  /// up the shorter samples of a batch.
  void advance(const std::vector<int64_t>& count);
  int64_t capacity() const { return capacity_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  /// Samples in a row that have read as many tokens.
  struct Group {
    int64_t sample = 0, samples = 0, length = 0;
  };
  std::vector<Group> groups() const;

  int64_t capacity_;
  AttentionKernel preferred_;
  std::vector<int64_t> lengths_;
  struct Block {
    at::Tensor keys, values;  // [B, capacity, Hk, d]
  };
  std::map<int64_t, Block> blocks_;
};

}  // namespace titan
