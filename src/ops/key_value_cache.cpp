#include "titan/ops/key_value_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "attention_kernels.h"
#include "tensor_checks.h"
#include "tiled_attention.h"
#include "titan/base/error.h"

namespace titan {

KeyValueCache::KeyValueCache(int64_t samples, int64_t capacity)
    : capacity_(capacity), lengths_(static_cast<size_t>(samples), 0) {}

std::vector<KeyValueCache::SampleRange> KeyValueCache::ranges_of_equal_length() const {
  std::vector<SampleRange> ranges;
  for (size_t sample = 0; sample < lengths_.size(); ++sample) {
    if (ranges.empty() || ranges.back().length != lengths_[sample]) {
      ranges.push_back({static_cast<int64_t>(sample), 0, lengths_[sample]});
    }
    ++ranges.back().samples;
  }
  return ranges;
}

at::Tensor KeyValueCache::attend(int64_t block, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value) {
  check_attention(query, key, value, query.size(1));
  const int64_t samples = query.size(0), tokens = query.size(1);
  TITAN_CHECK(samples == std::ssize(lengths_), samples, lengths_.size());
  const auto [entry, is_new] = blocks_.try_emplace(block);
  Block& held = entry->second;
  if (is_new) {
    held.keys = at::empty({samples, capacity_, key.size(2), key.size(3)}, key.options());
    held.values = at::empty_like(held.keys);
  }
  TITAN_CHECK(same_kind(held.keys, key) && held.keys.size(2) == key.size(2) && held.keys.size(3) == key.size(3),
              summary_of(held.keys), summary_of(key));
  std::vector<AttentionBlock> seen, own;
  for (const SampleRange& range : ranges_of_equal_length()) {
    TITAN_CHECK(range.length + tokens <= capacity_, range.length, tokens, capacity_);
    const auto place = [&](const at::Tensor& all, const at::Tensor& rows) {
      all.narrow(0, range.sample, range.samples)
          .narrow(1, range.length, tokens)
          .copy_(rows.narrow(0, range.sample, range.samples));
    };
    place(held.keys, key), place(held.values, value);
    AttentionBlock where{.sample = range.sample, .samples = range.samples, .query = 0, .queries = tokens};
    if (tokens == 1) {  // a single token sees all keys, so one block does for old and new, and nothing is merged
      where.keys = range.length + 1;
      own.push_back(where);
      continue;
    }
    where.keys = range.length;
    if (range.length > 0) seen.push_back(where);
    where.key = range.length, where.keys = tokens, where.causal = true;
    own.push_back(where);
  }
  if (query.is_cpu() && seen.empty()) return tiled_attention(query, held.keys, held.values, own)[0];
  const at::TensorOptions wide = query.options().dtype(at::kFloat);
  const AttentionSums sums{at::zeros(query.sizes(), wide),
                           at::full({samples, query.size(2), tokens}, -std::numeric_limits<double>::infinity(), wide)};
  for (const auto& blocks : {seen, own}) {
    if (blocks.empty()) continue;
    if (query.is_cpu()) {
      merge_tiled_attention(sums, query, held.keys, held.values, blocks);
    } else {
      merge_dense_attention(AttentionKernel::cudnn, sums, query, held.keys, held.values, blocks);
    }
  }
  return sums.output.to(query.scalar_type());
}

void KeyValueCache::advance(const std::vector<int64_t>& count) {
  TITAN_CHECK(count.size() == lengths_.size(), count.size());
  for (size_t sample = 0; sample < count.size(); ++sample) lengths_[sample] += count[sample];
}

}  // namespace titan
