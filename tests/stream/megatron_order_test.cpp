// Megatron-LM's order. What its own code gives for thousands of sequences: tests/reference/megatron_order_test.py.
#include "titan/stream/megatron_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "src/corpus/token_source.h"
#include "support/files.h"
#include "support/foreign_ids.h"
#include "support/random_sequence.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

template <typename Element>
std::vector<Element> shuffled(NumpyRandom& random, size_t size) {
  std::vector<Element> elements(size);
  std::iota(elements.begin(), elements.end(), Element{0});
  random.shuffle(std::span(elements));
  return elements;
}

/// A hash of the order of the numbers below `size`.
uint64_t shuffled_hash(NumpyRandom& random, size_t size) {
  uint64_t hash = 0;
  for (const uint32_t element : shuffled<uint32_t>(random, size)) hash = hash * 31 + element;
  return hash;
}

TEST(NumpyRandom, TwoShufflesInARowAreThoseOfRandomStateForSmallAndLargeSeeds) {
  struct Case {
    uint32_t seed;
    std::vector<int32_t> ten;
    std::vector<uint32_t> five;
  };
  for (const Case& expected : {Case{0, {2, 8, 4, 9, 1, 6, 7, 3, 0, 5}, {1, 0, 2, 3, 4}},
                               Case{1234, {7, 2, 9, 1, 0, 8, 4, 5, 6, 3}, {0, 4, 3, 2, 1}},
                               Case{4294967295, {6, 9, 5, 1, 8, 0, 7, 4, 2, 3}, {0, 1, 4, 2, 3}}}) {
    NumpyRandom random(expected.seed);
    EXPECT_EQ(shuffled<int32_t>(random, 10), expected.ten) << expected.seed;
    EXPECT_EQ(shuffled<uint32_t>(random, 5), expected.five) << expected.seed;
  }
}

TEST(NumpyRandom, ArraysAroundAPowerOfTwoAreShuffledAsByRandomState) {
  NumpyRandom random(1234);
  EXPECT_EQ(shuffled_hash(random, 65536), 0x19926419a23bde9cu);
  EXPECT_EQ(shuffled_hash(random, 65537), 0xf8df785cb623d0b6u);
}

TEST(NumpyRandom, NothingIsDrawnForNoneOrOneElement) {
  NumpyRandom random(1234), same(1234);
  EXPECT_TRUE(shuffled<int32_t>(random, 0).empty());
  EXPECT_EQ(shuffled<int32_t>(random, 1), std::vector<int32_t>{0});
  EXPECT_EQ(shuffled<int32_t>(random, 9), shuffled<int32_t>(same, 9));
}

TEST(MegatronSplit, SharesAreAddedAndDividedAsMegatronDoes) {
  const auto parts = parse_megatron_split("969, 30, 1");
  EXPECT_EQ(parts[0], FilePart({0.0, 0.969}));
  EXPECT_EQ(parts[1], FilePart({0.969, 0.969 + 0.03}));
  EXPECT_EQ(parts[2], FilePart({0.969 + 0.03, 0.969 + 0.03 + 0.001}));
  EXPECT_EQ(parse_megatron_split("98/2")[1], FilePart({0.98, 1.0}));
  EXPECT_EQ(parse_megatron_split(".5 1.5")[0], FilePart({0.0, 0.25}));
  EXPECT_EQ(parse_megatron_split("100")[1], FilePart());
  EXPECT_EQ(parse_megatron_split("0,1,0")[0], FilePart());
}

TEST(MegatronSplit, WhatIsNoShareIsNamed) {
  const auto refusal = [](const char* shares) {
    return message_of(ExitCode::bad_config, [&] { parse_megatron_split(shares); });
  };
  EXPECT_EQ(refusal("1, -2"), "the split \"1, -2\" holds \"-2\"");
  EXPECT_EQ(refusal("1e3"), "the split \"1e3\" holds \"1e3\"");
  EXPECT_EQ(refusal("1.2.3"), "the split \"1.2.3\" holds \"1.2.3\"");
  EXPECT_EQ(refusal("nan"), "the split \"nan\" holds \"nan\"");
  EXPECT_EQ(refusal("1,1,1,1"), "the split \"1,1,1,1\" has more than three shares");
  EXPECT_EQ(refusal("0, 0"), "the split \"0, 0\" has no share above zero");
}

using Ids = std::vector<int64_t>;

/// Lengths of entries. Id j of entry i is 10·i + j; one of the five is empty.
const std::vector<int32_t> kLengths{3, 0, 5, 2, 4};

MegatronOrderRequest request_of(std::optional<int64_t> samples, int64_t length = 4, uint32_t seed = 1234) {
  MegatronOrderRequest request;
  request.sequence_length = length;
  request.samples = samples;
  request.seed = seed;
  return request;
}

/// The ids of each sample, in order.
std::vector<Ids> samples_of(const MegatronOrder& order, const std::vector<int32_t>& lengths, int64_t length) {
  std::vector<Ids> samples;
  for (int64_t i = 0; i < order.samples(); ++i) {
    MegatronOrder::Place place = order.place_of(i);
    Ids& ids = samples.emplace_back();
    while (std::ssize(ids) <= length) {
      const int32_t entry = order.entries().at(static_cast<size_t>(place.position));
      if (place.offset < lengths[static_cast<size_t>(entry)]) {
        ids.push_back(entry * 10 + place.offset++);
      } else {
        ++place.position, place.offset = 0;
      }
    }
  }
  return samples;
}

TEST(MegatronOrder, OneEpochIsEverySampleThatItsIdsFill) {
  const MegatronOrder order(kLengths, request_of(std::nullopt));
  EXPECT_EQ(order.entries(), (std::vector<int32_t>{4, 0, 1, 2, 3}));
  EXPECT_EQ(samples_of(order, kLengths, 4),
            (std::vector<Ids>{{0, 1, 2, 20, 21}, {21, 22, 23, 24, 30}, {40, 41, 42, 43, 0}}));
  EXPECT_EQ(order.description(), "Megatron's samples of 4 tokens from entries 0 to 4, 1 epoch, seed 1234");
}

TEST(MegatronOrder, EpochsAreShuffledTogetherIfMostOfTheLastIsAskedFor) {
  const MegatronOrder order(kLengths, request_of(6));
  EXPECT_EQ(order.entries(), (std::vector<int32_t>{2, 2, 4, 1, 0, 3, 4, 0, 1, 3}));
  EXPECT_EQ(samples_of(order, kLengths, 4), (std::vector<Ids>{{41, 42, 43, 0, 1},
                                                              {20, 21, 22, 23, 24},
                                                              {42, 43, 0, 1, 2},
                                                              {2, 30, 31, 40, 41},
                                                              {23, 24, 40, 41, 42},
                                                              {24, 20, 21, 22, 23}}));
  EXPECT_EQ(order.description(), "Megatron's samples of 4 tokens from entries 0 to 4, 2 epochs, seed 1234");
}

TEST(MegatronOrder, TheLastEpochIsSeparateIfLittleOfItIsAskedFor) {
  const MegatronOrder order(kLengths, request_of(4));
  EXPECT_EQ(order.epochs(), 2);
  EXPECT_EQ(order.entries(), (std::vector<int32_t>{4, 0, 1, 2, 3, 3, 2, 1, 0, 4}));
  EXPECT_EQ(samples_of(order, kLengths, 4), (std::vector<Ids>{{40, 41, 42, 43, 0},
                                                              {21, 22, 23, 24, 30},
                                                              {0, 1, 2, 20, 21},
                                                              {24, 0, 1, 2, 40},
                                                              {30, 31, 30, 31, 20},
                                                              {20, 21, 22, 23, 24}}));
  EXPECT_EQ(order.description(),
            "Megatron's samples of 4 tokens from entries 0 to 4, 2 epochs with the last one separate, seed 1234");
}

TEST(MegatronOrder, APlaceIsFoundAmongManyShortAndEmptyEntries) {
  PhiloxSequence random(3);
  std::vector<int32_t> lengths(700);
  for (int32_t& length : lengths) length = static_cast<int32_t>(random.below(4));
  std::fill(lengths.begin() + 100, lengths.begin() + 300, 0);  // more than are passed over at once
  const MegatronOrder order(lengths, request_of(900, 3));
  std::vector<MegatronOrder::Place> of_tokens;
  for (int64_t position = 0; position < std::ssize(order.entries()); ++position) {
    const int32_t length = lengths[static_cast<size_t>(order.entries()[static_cast<size_t>(position)])];
    for (int64_t offset = 0; offset < length; ++offset) of_tokens.push_back({position, offset});
  }
  std::vector<bool> found(static_cast<size_t>(order.samples()));
  ASSERT_GE(order.samples(), 900);
  for (int64_t i = 0; i < order.samples(); ++i) {
    const auto at = std::find(of_tokens.begin(), of_tokens.end(), order.place_of(i)) - of_tokens.begin();
    ASSERT_EQ(at % 3, 0);
    ASSERT_LT(at + 3, std::ssize(of_tokens)) << "it has four ids";
    found.at(static_cast<size_t>(at / 3)) = true;
  }
  EXPECT_EQ(std::count(found.begin(), found.end(), true), order.samples()) << "each sample once";
}

TEST(MegatronOrder, APartIsRoundedToTheEvenEntryAtAHalf) {
  const auto part_of = [](size_t count, size_t part) {
    MegatronOrderRequest request = request_of(1);
    request.part = parse_megatron_split("1,1")[part];
    std::vector<int32_t> entries = MegatronOrder(std::vector<int32_t>(count, 10), request).entries();
    std::sort(entries.begin(), entries.end());
    return entries;
  };
  EXPECT_EQ(part_of(5, 0), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(part_of(5, 1), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(part_of(3, 0), (std::vector<int32_t>{0, 1}));
}

TEST(MegatronOrder, APartWithTooFewIdsOrARunWithTooManySamplesIsRefused) {
  const auto refusal = [](MegatronOrderRequest request) {
    return message_of(ExitCode::bad_data, [&] { MegatronOrder(kLengths, request); });
  };
  MegatronOrderRequest nothing = request_of(1);
  nothing.part = std::nullopt;
  nothing.subject = "the training part of a.bin";
  EXPECT_EQ(refusal(nothing),
            "data.order = \"megatron\": the training part of a.bin has 0 of 5 entries with 0 ids. Give a larger file, "
            "or data.megatron_split a larger first share.");
  nothing.section = "validation";
  EXPECT_PRED_FORMAT2(test::contains, refusal(nothing),
                      "Give data.megatron_split a larger second share, or name another file in "
                      "validation.dataset_path.");
  EXPECT_EQ(refusal(request_of(std::nullopt, 14)),
            "data.order = \"megatron\": the file has 5 of 5 entries with 14 ids, too few for one sample of "
            "training.seq_len + 1 = 15. Lower training.seq_len, or give a larger file.");
  EXPECT_EQ(MegatronOrder(kLengths, request_of(std::nullopt, 13)).samples(), 1);
  for (const int64_t samples : {int64_t{1} << 32, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    EXPECT_PRED_FORMAT2(test::contains, refusal(request_of(samples)), "is computed up to 4,294,967,294 samples");
  }
}

TEST(MegatronOrder, AnOrderThatDoesNotFitIntoMemoryIsRefusedBeforeItIsAllocated) {
  MegatronOrderRequest request = request_of(6);  // 10 entries of 4 bytes, one start of 8, 6 samples of 4
  request.memory = 72;
  EXPECT_EQ(MegatronOrder(kLengths, request).samples(), 6);
  request.memory = 71;
  EXPECT_EQ(
      message_of(ExitCode::out_of_memory, [&] { MegatronOrder(kLengths, request); }),
      "data.order = \"megatron\": the order of 6 samples and 10 entries in 2 epochs takes 72 B in each process, and "
      "this machine has 71 B left. Lower training.steps, start fewer processes on a machine, or leave data.order "
      "at \"documents\".");
  MegatronOrderRequest large = request_of(4'000'000'000, 1);  // 22 GB, which this test must not take
  large.memory = int64_t{1} << 30;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::out_of_memory, [&] { MegatronOrder(kLengths, large); }),
                      "the order of 4,000,000,003 samples and 1,428,571,430 entries in 285714286 epochs takes 20.");
}

/// A corpus of Megatron-LM of kLengths with these ids, and streams of it.
class MegatronStreamTest : public testing::Test {
 protected:
  MegatronStreamTest() {
    test::IdDocuments entries;
    for (size_t i = 0; i < kLengths.size(); ++i) {
      auto& ids = entries.emplace_back();
      for (int32_t j = 0; j < kLengths[i]; ++j) ids.push_back(static_cast<int64_t>(10 * i) + j);
    }
    folder_.write("corpus.bin", test::id_bytes<int32_t>(entries));
    // Two documents: of three entries and of two. Megatron's GPTDataset does not ask for them.
    folder_.write("corpus.idx", test::megatron_index({{3, 0, 5}, {2, 4}}, 4, 4).bytes());
  }

  std::unique_ptr<MegatronStream> open(const MegatronOrderRequest& request, const std::string& name = "corpus.bin") {
    DatasetOptions options{.dataset = "text", .path = (folder_ / name).string()};
    options.tokenizer = tokenizer_.get();
    return std::make_unique<MegatronStream>(open_dataset(options), tokenizer_, request, "text");
  }

  std::vector<std::vector<int32_t>> rest_of(MegatronStream& stream) {
    std::vector<std::vector<int32_t>> samples;
    for (Chunk chunk; stream.next(chunk);) samples.push_back(chunk.tokens);
    return samples;
  }

  TemporaryFolder folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      std::make_shared<RecordedVocabulary>(100, Tokenizer::kNoId, Tokenizer::kNoId, "");
};

TEST_F(MegatronStreamTest, ChunksAreTheSamplesWithTheStartsOfEntries) {
  const auto stream = open(request_of(4));
  Chunk chunk;
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(chunk.tokens, (std::vector<int32_t>{40, 41, 42, 43, 0}));
  EXPECT_EQ(chunk.document_starts, std::vector<int32_t>{0});
  EXPECT_TRUE(chunk.ends_document);
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(chunk.tokens, (std::vector<int32_t>{21, 22, 23, 24, 30}));
  EXPECT_TRUE(chunk.document_starts.empty());
  EXPECT_TRUE(chunk.ends_document);
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(chunk.tokens, (std::vector<int32_t>{0, 1, 2, 20, 21}));
  EXPECT_EQ(chunk.document_starts, (std::vector<int32_t>{0, 3}));
  EXPECT_FALSE(chunk.ends_document);
  EXPECT_EQ(rest_of(*stream).size(), 3u);
  EXPECT_FALSE(stream->next(chunk)) << "after the last sample of the last epoch";
  EXPECT_EQ(stream->counters().tokens, 6 * 4);
}

TEST_F(MegatronStreamTest, EveryPointIsResumedAndASkippedSampleCountsAsOne) {
  const auto whole = rest_of(*open(request_of(6)));
  for (size_t at = 0; at <= whole.size(); ++at) {
    const auto before = open(request_of(6)), after = open(request_of(6));
    Chunk chunk;
    for (size_t i = 0; i < at; ++i) ASSERT_TRUE(i % 2 == 0 ? before->next(chunk) : before->skip(chunk));
    after->restore(stream_state_from_json(to_json(before->state())));
    EXPECT_EQ(rest_of(*after), std::vector(whole.begin() + static_cast<std::ptrdiff_t>(at), whole.end())) << at;
  }
}

TEST_F(MegatronStreamTest, RanksReadTheRowsOfOneGlobalBatchInMegatronsOrder) {
  const auto whole = rest_of(*open(request_of(8, 4)));
  for (const int64_t ranks : {1, 2, 4}) {
    const BatchPlan all{.sequence_length = 4, .local_batch = 1, .accumulation = 4 / ranks, .dp_degree = ranks};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchPlan plan = all;
      plan.dp_rank = rank;
      BatchStream stream(open(request_of(8, 4)), plan, {});
      for (size_t step = 0; step < 2; ++step) {
        const auto batch = stream.next();
        ASSERT_TRUE(batch);
        EXPECT_EQ(batch->valid_tokens, 16) << "of all ranks";
        EXPECT_EQ(batch->state.chunk, static_cast<int64_t>(step + 1) * 4);
        for (size_t a = 0; a < batch->microbatches.size(); ++a) {
          // Megatron's sampler gives consecutive samples to consecutive ranks, microbatch by microbatch.
          const auto& sample = whole[step * 4 + a * static_cast<size_t>(ranks) + static_cast<size_t>(rank)];
          EXPECT_EQ(batch->microbatches[a].tokens, std::vector<int64_t>(sample.begin(), sample.end() - 1));
          EXPECT_EQ(batch->microbatches[a].labels, std::vector<int64_t>(sample.begin() + 1, sample.end()));
        }
      }
    }
  }
}

TEST_F(MegatronStreamTest, APositionInAnotherOrderIsRefused) {
  const auto stream = open(request_of(5));
  Chunk chunk;
  stream->next(chunk);
  const StreamState state = stream->state();
  const auto refusal = [&](ChunkSource& other) {
    return message_of(ExitCode::bad_data, [&] { other.restore(state); });
  };
  open(request_of(6))->restore(state);  // as many epochs, shuffled together as before
  const std::string shorter = refusal(*open(request_of(4)));
  EXPECT_PRED_FORMAT2(test::contains, shorter,
                      "training.steps and training.global_batch_size say how many of Megatron's samples the run reads");
  EXPECT_PRED_FORMAT2(test::contains, shorter,
                      "The position was saved in the order of 2 epochs, and the order is now that of 2 epochs with the "
                      "last one separate. Set both options as they were");
  EXPECT_PRED_FORMAT2(test::contains, shorter, "checkpoint.exclude_from_loading");
  EXPECT_PRED_FORMAT2(test::contains, refusal(*open(request_of(4, 4, 5))), "seed 1234, but is now read as")
      << "the steps are not all that differs";
  EXPECT_PRED_FORMAT2(test::contains, refusal(*open(request_of(5, 4, 5))), "seed 5");
  EXPECT_PRED_FORMAT2(test::contains, refusal(*open(request_of(5, 2))), "samples of 2 tokens");
  ChunkOptions options;
  options.sequence_length = 4;
  ChunkStream documents(open_dataset({.dataset = "text", .path = (folder_ / "corpus.bin").string()}), tokenizer_,
                        options);
  EXPECT_PRED_FORMAT2(test::contains, refusal(documents), "Megatron's samples of 4 tokens");
  documents.next(chunk);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { stream->restore(documents.state()); }),
                      "but is now read as");
  stream->restore({});
  EXPECT_EQ(rest_of(*stream).size(), 6u) << "from the beginning";
}

TEST_F(MegatronStreamTest, OtherSourcesThanOneFileOfMegatronAreRefused) {
  const auto refusal = [&](const std::string& name) {
    return message_of(ExitCode::bad_data, [&] { open(request_of(4), name); });
  };
  folder_.write("ids.ds", test::id_bytes<uint16_t>({{1, 2}, {3}}));
  folder_.write("ids.ds.index", test::datatrove_index({{1, 2}, {3}}));
  EXPECT_PRED_FORMAT2(test::contains, refusal("ids.ds"),
                      "data.order = \"megatron\" reads one .bin file of Megatron-LM with its .idx");
  folder_.write("two/a.bin", test::id_bytes<int32_t>({{1, 2}}));
  folder_.write("two/a.idx", test::index_of({{1, 2}}, 4, 4).bytes());
  folder_.write("two/b.bin", test::id_bytes<int32_t>({{1, 2}}));
  folder_.write("two/b.idx", test::index_of({{1, 2}}, 4, 4).bytes());
  EXPECT_PRED_FORMAT2(test::contains, refusal("two"), "reads one .bin file of Megatron-LM");
}

TEST_F(MegatronStreamTest, AnIdOutsideTheVocabularyIsNamed) {
  tokenizer_ = std::make_shared<RecordedVocabulary>(40, Tokenizer::kNoId, Tokenizer::kNoId, "");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { rest_of(*open(request_of(4))); }), "43");
}

}  // namespace
}  // namespace titan
