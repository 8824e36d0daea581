// Attention with a key-value cache gives the result of attention over the whole sequence. The reference recomputes all
// tokens. The cache has three cases: a single new token, several new tokens, whose block is merged with the earlier
// keys, and samples of equal length, which are computed together.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/operation.h"
#include "titan/ops/attention.h"
#include "titan/ops/key_value_cache.h"

namespace titan {
namespace {

constexpr int64_t kSamples = 3, kLongest = 13, kHeads = 4, kKeyHeads = 2, kHeadDim = 8;

struct QueryKeyValue {
  at::Tensor query, key, value;
};

QueryKeyValue drawn(at::ScalarType type) {
  return {normal({kSamples, kLongest, kHeads, kHeadDim}, 1, type),
          normal({kSamples, kLongest, kKeyHeads, kHeadDim}, 2, type),
          normal({kSamples, kLongest, kKeyHeads, kHeadDim}, 3, type)};
}

/// The plain twin: all tokens of one sample at once.
at::Tensor plain_attention(const QueryKeyValue& all, int64_t sample, int64_t length) {
  const auto part = [&](const at::Tensor& x) { return x.narrow(0, sample, 1).narrow(1, 0, length).contiguous(); };
  PlainContext plain;
  return make_sdpa_core(false)->forward(part(all.query), part(all.key), part(all.value), {}, plain.context)[0];
}

/// Feeds each sample its next `count` tokens, as far as `lengths` and these go; shorter ones are padded.
at::Tensor attend(KeyValueCache& cache, const QueryKeyValue& all, std::vector<int64_t>& lengths,
                  const std::vector<int64_t>& count) {
  const int64_t tokens = *std::max_element(count.begin(), count.end());
  const auto next = [&](const at::Tensor& x) {
    at::Tensor rows = at::zeros({kSamples, tokens, x.size(2), x.size(3)}, x.options());
    for (size_t s = 0; s < count.size(); ++s) {
      const auto sample = static_cast<int64_t>(s);
      rows[sample].narrow(0, 0, count[s]).copy_(x[sample].narrow(0, lengths[s], count[s]));
    }
    return rows;
  };
  at::Tensor output = cache.attend(/*block=*/5, next(all.query), next(all.key), next(all.value));
  cache.advance(count);
  for (size_t s = 0; s < count.size(); ++s) lengths[s] += count[s];
  return output;
}

class CachedAttention : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(CachedAttention, IsThatOfItsPlainTwinForTokensOneByOneAndSeveral) {
  const QueryKeyValue all = drawn(GetParam());
  KeyValueCache cache(kSamples, kLongest);
  std::vector<int64_t> lengths(kSamples, 0);
  const std::vector<std::vector<int64_t>> rounds{{4, 2, 4}, {1, 1, 1}, {1, 1, 1}, {3, 5, 3}, {1, 1, 1}, {2, 1, 2}};
  for (const std::vector<int64_t>& count : rounds) {
    const at::Tensor output = attend(cache, all, lengths, count);
    for (size_t s = 0; s < count.size(); ++s) {
      const auto sample = static_cast<int64_t>(s);
      const at::Tensor expected = plain_attention(all, sample, lengths[s]).narrow(0, lengths[s] - count[s], count[s]);
      EXPECT_TRUE(near(output[sample].narrow(0, 0, count[s]), expected, tolerance(GetParam())))
          << "sample " << s << " of " << lengths[s] << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CachedAttention, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace titan
