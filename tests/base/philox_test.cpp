#include "titan/base/philox.h"

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
