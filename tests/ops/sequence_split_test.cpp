// Which places each rank holds, and that the blocks of all ranks are the mask: no pair missing, none twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "titan/base/error.h"
#include "titan/ops/context_parallel.h"

namespace titan {
namespace {

using Places = std::vector<int64_t>;

/// Places of the whole sequence in a rank's order.
Places local_places(const SequenceSplit& split, int64_t rank, int64_t length) {
  Places places;
  for (const PlaceRange& range : split.places(rank, length)) {
    for (int64_t place = range.begin; place < range.end; ++place) places.push_back(place);
  }
  return places;
}

/// How often each (query, key) of the whole sequence is in a block of any rank, [T·T].
std::vector<int> times_seen(const SequenceSplit& split, int64_t length, const DocumentStarts& starts) {
  std::vector<int> times(static_cast<size_t>(length * length));
  for (int64_t rank = 0; rank < split.ranks; ++rank) {
    const Places queries = local_places(split, rank, length);
    for (int64_t source = 0; source < split.ranks; ++source) {
      const Places keys = local_places(split, source, length);
      for (const AttentionBlock& block : attention_blocks(split, 1, length, rank, source, {starts})) {
        for (int64_t i = 0; i < block.queries; ++i) {
          for (int64_t j = 0; j < (block.causal ? i + 1 : block.keys); ++j) {
            const int64_t query = queries.at(static_cast<size_t>(block.query + i));
            ++times[static_cast<size_t>(query * length + keys.at(static_cast<size_t>(block.key + j)))];
          }
        }
      }
    }
  }
  return times;
}

std::vector<int> mask_of(int64_t length, const DocumentStarts& starts) {
  std::vector<int> mask(static_cast<size_t>(length * length));
  for (int64_t query = 0; query < length; ++query) {
    const int64_t begin = *std::prev(std::upper_bound(starts.begin(), starts.end(), query));
    for (int64_t key = begin; key <= query; ++key) mask[static_cast<size_t>(query * length + key)] = 1;
  }
  return mask;
}

std::string name(const SequenceSplit& split, int64_t length, const DocumentStarts& starts) {
  std::string text = std::to_string(split.ranks) + (split.balance == LoadBalance::none ? " in a row, " : " balanced, ");
  text += std::to_string(length) + " places, documents at";
  for (int64_t start : starts) text += " " + std::to_string(start);
  return text;
}

/// The set bits of `bits` after place 0, where there always is one.
DocumentStarts starts_of(uint64_t bits, int64_t length) {
  DocumentStarts starts{0};
  for (int64_t place = 1; place < length; ++place) {
    if (bits >> (place - 1) & 1) starts.push_back(place);
  }
  return starts;
}

TEST(AttentionBlocks, AreTheMaskForEveryCutIntoDocuments) {
  for (const LoadBalance balance : {LoadBalance::head_tail, LoadBalance::none}) {
    for (int64_t ranks = 1; ranks <= 4; ++ranks) {
      const SequenceSplit split{ranks, balance};
      for (int64_t length = split.chunks(); length <= 12; length += split.chunks()) {
        for (uint64_t bits = 0; bits < uint64_t{1} << (length - 1); ++bits) {
          const DocumentStarts starts = starts_of(bits, length);
          ASSERT_EQ(times_seen(split, length, starts), mask_of(length, starts)) << name(split, length, starts);
        }
      }
    }
  }
}

TEST(AttentionBlocks, AreTheMaskForLongSequencesAndManyRanks) {
  std::mt19937_64 random(5);
  for (int64_t ranks : {2, 3, 5, 8}) {
    for (const LoadBalance balance : {LoadBalance::head_tail, LoadBalance::none}) {
      const SequenceSplit split{ranks, balance};
      for (int round = 0; round < 5; ++round) {
        const int64_t length = split.chunks() * static_cast<int64_t>(1 + random() % 6);
        const DocumentStarts starts = starts_of(random() & random() & random(), std::min<int64_t>(length, 60));
        ASSERT_EQ(times_seen(split, length, starts), mask_of(length, starts)) << name(split, length, starts);
      }
    }
  }
}

TEST(AttentionBlocks, AreOnePerDocumentSoThatTasksNeverMeet) {
  const SequenceSplit split{3};
  const DocumentStarts starts{0, 3, 4, 20};
  for (int64_t rank = 0; rank < 3; ++rank) {
    for (int64_t source = 0; source < 3; ++source) {
      const auto blocks = attention_blocks(split, 1, 24, rank, source, {starts});
      for (size_t i = 1; i < blocks.size(); ++i) {
        EXPECT_GE(blocks[i].query, blocks[i - 1].query + blocks[i - 1].queries);
        EXPECT_GE(blocks[i].key, blocks[i - 1].key + blocks[i - 1].keys);
      }
    }
  }
}

TEST(AttentionBlocks, OfABalancedRingAreTheThreeCasesForAllSamplesAtOnce) {
  const SequenceSplit split{4};
  const int64_t length = 64;  // chunks of 8, 16 places a rank
  auto only = [&](int64_t rank, int64_t source) {
    const auto blocks = attention_blocks(split, 3, length, rank, source, {});
    EXPECT_EQ(blocks.size(), 1u);
    return blocks.at(0);
  };
  EXPECT_EQ(only(2, 2), (AttentionBlock{0, 3, 0, 16, 0, 16, true}));
  EXPECT_EQ(only(2, 1), (AttentionBlock{0, 3, 0, 16, 0, 8, false})) << "all queries, the first half of the keys";
  EXPECT_EQ(only(2, 3), (AttentionBlock{0, 3, 8, 8, 0, 16, false})) << "the second half of the queries, all keys";
}

TEST(AttentionBlocks, OfAnUnbalancedRingAreEmptyForLaterKeys) {
  const SequenceSplit split{4, LoadBalance::none};
  EXPECT_TRUE(attention_blocks(split, 1, 64, 1, 2, {}).empty());
  EXPECT_EQ(attention_blocks(split, 1, 64, 2, 1, {}).size(), 1u);
}

/// Pairs of a rank's queries with keys.
int64_t work_of(const SequenceSplit& split, int64_t length, int64_t rank) {
  int64_t pairs = 0;
  for (int64_t source = 0; source < split.ranks; ++source) {
    for (const AttentionBlock& block : attention_blocks(split, 1, length, rank, source, {})) {
      pairs += block.causal ? block.queries * (block.queries + 1) / 2 : block.queries * block.keys;
    }
  }
  return pairs;
}

TEST(SequenceSplit, BalancedRanksHaveTheSameWorkAndUnbalancedOnesHaveNot) {
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(work_of({4}, 64, rank), work_of({4}, 64, 0)) << rank;
  EXPECT_GT(work_of({4, LoadBalance::none}, 64, 3), 5 * work_of({4, LoadBalance::none}, 64, 0));
}

TEST(SequenceSplit, DealsOutEveryPlaceOnceInAscendingOrder) {
  for (const LoadBalance balance : {LoadBalance::head_tail, LoadBalance::none}) {
    const SequenceSplit split{3, balance};
    Places all;
    for (int64_t rank = 0; rank < 3; ++rank) {
      const Places mine = local_places(split, rank, 18);
      EXPECT_EQ(mine.size(), 6u);
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
      all.insert(all.end(), mine.begin(), mine.end());
    }
    std::sort(all.begin(), all.end());
    Places expected(18);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
  EXPECT_EQ(local_places({2}, 0, 8), (Places{0, 1, 6, 7}));
  EXPECT_EQ(local_places({2}, 1, 8), (Places{2, 3, 4, 5}));
}

TEST(SequenceSplit, ALengthThatDoesNotDivideIsABug) {
  EXPECT_THROW(SequenceSplit({2}).places(0, 6), InvariantError);
  EXPECT_NO_THROW(SequenceSplit({2, LoadBalance::none}).places(0, 6));
}

}  // namespace
}  // namespace titan
