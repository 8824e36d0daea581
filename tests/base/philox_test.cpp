#include "titan/base/philox.h"
#include "support/random_sequence.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

template <int kRounds>
PhiloxBlock words(PhiloxBlock counter, uint64_t key) {
  philox_words<kRounds>(counter[0], counter[1], counter[2], counter[3], key);
  return counter;
}

TEST(PhiloxWords, MatchThePublishedVectorsOfTenAndOfSevenRounds) {
  constexpr PhiloxBlock kZeros{0, 0, 0, 0}, kOnes{~0u, ~0u, ~0u, ~0u};
  constexpr PhiloxBlock kDigits{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  constexpr uint64_t kDigitsKey = 0x299f31d0a4093822;
  EXPECT_EQ(words<10>(kZeros, 0), philox(kZeros, 0));
  EXPECT_EQ(words<10>(kOnes, ~uint64_t{0}), philox(kOnes, ~uint64_t{0}));
  EXPECT_EQ(words<10>(kDigits, kDigitsKey), philox(kDigits, kDigitsKey));
  EXPECT_EQ(words<7>(kZeros, 0), (PhiloxBlock{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(words<7>(kOnes, ~uint64_t{0}), (PhiloxBlock{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(words<7>(kDigits, kDigitsKey), (PhiloxBlock{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(Philox, ASequenceWalksTheBlocksOfItsStream) {
  PhiloxSequence sequence(7, 3);
  for (uint64_t block = 0; block < 3; ++block) {
    for (uint32_t word : philox_at(7, 3, block)) EXPECT_EQ(sequence.next(), word);
  }
}

TEST(Philox, TheUnitIntervalNeverReachesItsEnds) {
  EXPECT_GT(unit_interval(0), 0.0);
  EXPECT_LT(unit_interval(~0u), 1.0);
}

}  // namespace
}  // namespace titan
