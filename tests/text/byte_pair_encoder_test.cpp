#include "src/text/byte_pair_encoder.h"
#include "support/random_sequence.h"

#include <algorithm>

#include "support/texts.h"

namespace titan {
namespace {

using test::bytes_and;

std::vector<int32_t> encode(const BytePairEncoder& encoder, std::string_view piece) {
  std::vector<int32_t> ids;
  encoder.encode_piece(piece, ids);
  return ids;
}

/// The definition, as slow as it is short: merge the neighbours whose union has the lowest rank, leftmost first.
std::vector<int32_t> encode_by_definition(const BytePairEncoder& encoder, const std::string& piece) {
  if (encoder.rank_of(piece) != BytePairEncoder::kNone) return {encoder.rank_of(piece)};
  std::vector<std::string> parts;
  for (char c : piece) parts.emplace_back(1, c);
  while (true) {
    int32_t lowest = BytePairEncoder::kNone;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      int32_t rank = encoder.rank_of(parts[i] + parts[i + 1]);
      if (rank < lowest) lowest = rank, at = i;
    }
    if (lowest == BytePairEncoder::kNone) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const auto& part : parts) ids.push_back(encoder.rank_of(part));
  return ids;
}

/// A vocabulary over few letters, so that merges compete; every token is a concatenation of two earlier ones.
BytePairEncoder crowded_encoder(uint64_t seed) {
  PhiloxSequence random(seed);
  std::vector<std::string> grown{"a", "b", "c"};
  std::vector<std::string> more;
  while (more.size() < 120) {
    std::string token = grown[random.below(static_cast<uint32_t>(grown.size()))] +
                        grown[random.below(static_cast<uint32_t>(grown.size()))];
    if (token.size() > 12 || std::find(grown.begin(), grown.end(), token) != grown.end()) continue;
    grown.push_back(token);
    more.push_back(token);
  }
  return BytePairEncoder(bytes_and(more));
}

TEST(BytePairEncoder, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  BytePairEncoder encoder(bytes_and({"bc", "ab", "aa"}));
  EXPECT_EQ(encode(encoder, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(encode(encoder, "aaa"), (std::vector<int32_t>{258, 'a'}));
}

TEST(BytePairEncoder, APieceThatIsATokenIsThatTokenEvenWhereMergingWouldNotReachIt) {
  BytePairEncoder encoder(bytes_and({"xyz"}));
  EXPECT_EQ(encode(encoder, "xyz"), std::vector<int32_t>{256});
  EXPECT_EQ(encode(encoder, "wxyz"), (std::vector<int32_t>{'w', 'x', 'y', 'z'}));
}

TEST(BytePairEncoder, PiecesOfEveryLengthAreEncodedAsTheDefinitionSays) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    BytePairEncoder encoder = crowded_encoder(seed);
    // 96 bytes is where the heap takes over.
    for (size_t length : {1, 2, 3, 7, 31, 95, 96, 97, 98, 150, 701}) {
      std::string piece = test::random_text(U"aaabbc", length, seed * 1000 + length);
      EXPECT_EQ(encode(encoder, piece), encode_by_definition(encoder, piece)) << piece;
    }
  }
}

TEST(BytePairEncoder, RunsOfOneLetterAreEncodedAsTheDefinitionSays) {
  BytePairEncoder encoder(bytes_and({"aa", "aaaa", "aaaaaaaa"}));
  for (size_t length = 1; length < 140; ++length) {
    std::string piece(length, 'a');
    ASSERT_EQ(encode(encoder, piece), encode_by_definition(encoder, piece)) << length;
  }
}

TEST(BytePairEncoder, RanksAreFoundByBytes) {
  BytePairEncoder encoder(bytes_and({"hello"}));
  EXPECT_EQ(encoder.rank_of("hello"), 256);
  EXPECT_EQ(encoder.rank_of("hell"), BytePairEncoder::kNone);
  EXPECT_EQ(encoder.rank_of("helloo"), BytePairEncoder::kNone);
  EXPECT_EQ(encoder.rank_of(std::string(1, '\0')), 0);
}

}  // namespace
}  // namespace titan
