// The orders in which documents come: shuffled, split as torchtitan does, mixed by weights; and how chunks follow.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "tests/data/fixtures.h"
#include "tests/data/packed.h"
#include "titan/data/batch_stream.h"
#include "titan/data/chunk_mixture.h"
#include "titan/data/ordered_sources.h"
#include "titan/data/permutation.h"
#include "titan/data/step_assembler.h"
#include "titan/data/text_files.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

TEST(Permutation, IsOneToOneForEverySize) {
  for (const uint64_t size : {1u, 2u, 3u, 4u, 5u, 7u, 16u, 17u, 63u, 64u, 65u, 1000u, 4097u}) {
    const Permutation order(7, 3, size);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) {
      EXPECT_LT(order(i), size);
      seen.insert(order(i));
    }
    EXPECT_EQ(seen.size(), size);
  }
}

TEST(Permutation, IsAFunctionOfSeedAndEpochAndLooksRandom) {
  constexpr uint64_t kSize = 10'000;
  const Permutation order(7, 3, kSize), same(7, 3, kSize), epoch(7, 4, kSize), seed(8, 3, kSize);
  int64_t fixed = 0, neighbours = 0, equal_epoch = 0, equal_seed = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(order(i), same(i));
    fixed += order(i) == i ? 1 : 0;
    equal_epoch += order(i) == epoch(i) ? 1 : 0;
    equal_seed += order(i) == seed(i) ? 1 : 0;
    if (i > 0) neighbours += order(i) == order(i - 1) + 1 ? 1 : 0;
  }
  // Each is Poisson with mean 1 for a random order.
  for (const int64_t count : {fixed, neighbours, equal_epoch, equal_seed}) EXPECT_LE(count, 8);
}

TEST(Permutation, EveryPlaceIsReachedAboutEquallyOftenOverEpochs) {
  constexpr uint64_t kSize = 12;
  constexpr uint64_t kEpochs = 6000;
  std::vector<int> count(kSize * kSize);
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation order(1, epoch, kSize);
    for (uint64_t i = 0; i < kSize; ++i) ++count[i * kSize + order(i)];
  }
  double chi_squared = 0;
  constexpr double kExpected = double{kEpochs} / kSize;
  for (const int n : count) chi_squared += (n - kExpected) * (n - kExpected) / kExpected;
  EXPECT_LT(chi_squared, 190.0);  // 121 degrees of freedom: 99.99 % lie below
}

std::string records(int count, const std::string& prefix = "d") {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += "{\"text\": \"" + prefix + std::to_string(i) + "\"}\n" + (i % 3 ? "" : "\n");
  return lines;
}

std::vector<std::string> pass(DocumentSource& source) {
  std::vector<std::string> texts;
  for (Document document; source.next(document);) texts.push_back(document.text);
  return texts;
}

DatasetOptions text(const std::string& path) {
  DatasetOptions options;
  options.dataset = "text";
  options.path = path;
  return options;
}

TEST(Shuffled, EveryPassHoldsEveryDocumentOnceInAnotherOrder) {
  TemporaryFolder folder;
  folder.write("c/a.jsonl", records(40));
  folder.write("c/b.txt", "a text");
  folder.write("c/c.jsonl", records(30, "e"));
  DatasetOptions options = text((folder / "c").string());
  const std::vector<std::string> plain = pass(*open_dataset(options));
  options.shuffle_seed = 5;
  const auto source = open_dataset(options);
  std::set<std::vector<std::string>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    source->begin_pass(epoch);
    std::vector<std::string> texts = pass(*source);
    EXPECT_NE(texts, plain);
    orders.insert(texts);
    std::sort(texts.begin(), texts.end());
    std::vector<std::string> sorted = plain;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(texts, sorted);
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST(Shuffled, APositionIsOneInteger) {
  TemporaryFolder folder;
  DatasetOptions options = text(folder.write("a.jsonl", records(50)));
  options.shuffle_seed = 5;
  const auto source = open_dataset(options);
  source->begin_pass(2);
  std::vector<Document> documents;
  for (Document document; source->next(document);) documents.push_back(document);
  ASSERT_EQ(documents.size(), 50u);
  for (int i = 0; i < 50; ++i) {
    SourcePosition expected;
    expected.document = 100 + i;
    EXPECT_EQ(documents[static_cast<size_t>(i)].start, expected);
  }
  const auto other = open_dataset(options);
  other->seek(documents[17].start);
  Document document;
  ASSERT_TRUE(other->next(document));
  EXPECT_EQ(document.text, documents[17].text);
}

TEST(Shuffled, ABadRecordIsNamedWithItsLineAndPackedFilesAreRefusedWithTheWayOut) {
  TemporaryFolder folder;
  DatasetOptions options = text(folder.write("a.jsonl", "\n{\"text\": \"x\"}\n\nbroken\n"));
  options.shuffle_seed = 1;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { pass(*open_dataset(options)); }),
                      "a.jsonl:4: this line is no JSON");
  options.bad_record = BadRecord::skip;
  const auto source = open_dataset(options);
  EXPECT_EQ(pass(*source), std::vector<std::string>{"x"});
  EXPECT_EQ(source->counters().bad_records, 1);
  options.path = folder.write("b.jsonl.gz", test::gzip("{\"text\": \"x\"}\n"));
  const std::string message = message_of(ExitCode::bad_data, [&] { open_dataset(options); });
  EXPECT_PRED_FORMAT2(test::contains, message, "b.jsonl.gz: data.shuffle reads documents in any order");
  EXPECT_PRED_FORMAT2(test::contains, message, "titan_train data tokenize");
}

/// A step of every rank of `dp`, the rows of the global batch in their order, and the state, which all ranks share.
class Ranks {
 public:
  static constexpr int64_t kRows = 12;  // in a global batch, whatever the degree

  Ranks(const DatasetOptions& dataset, int64_t dp) {
    for (int64_t rank = 0; rank < dp; ++rank) {
      streams_.push_back(std::make_unique<BatchStream>(open_dataset(dataset), test::byte_tokenizer(),
                                                       BatchPlan{/*sequence_length=*/9, kRows / dp, 1, dp, rank},
                                                       BatchOptions()));
    }
  }
  void restore(const StreamState& state) {
    for (const auto& stream : streams_) stream->restore(state);
  }
  std::vector<int64_t> step() {
    std::vector<int64_t> tokens;
    for (const auto& stream : streams_) {
      const StepBatch batch = *stream->next();
      tokens.insert(tokens.end(), batch.microbatches[0].tokens.begin(), batch.microbatches[0].tokens.end());
      EXPECT_EQ(stream->state(), streams_[0]->state());
    }
    return tokens;
  }
  StreamState state() const { return streams_[0]->state(); }

 private:
  std::vector<std::unique_ptr<BatchStream>> streams_;
};

TEST(Shuffled, AnyDataParallelDegreeContinuesTheSameGlobalSequence) {
  TemporaryFolder folder;
  folder.write("c/a.jsonl", records(150));
  folder.write("c/b.jsonl", records(57, "another one "));
  DatasetOptions options = text((folder / "c").string());
  options.shuffle_seed = 5;
  constexpr int kSteps = 96;  // several passes
  std::vector<std::vector<int64_t>> expected;
  Ranks alone(options, 1);
  for (int step = 0; step < kSteps; ++step) expected.push_back(alone.step());
  ASSERT_GE(alone.state().epoch, 2);
  StreamState state;
  for (int step = 0; step < kSteps;) {  // the degree changes at every resume
    for (const int64_t dp : {2, 3, 4, 1, 4, 2, 1, 3}) {
      Ranks ranks(options, dp);
      ranks.restore(stream_state_from_json(nlohmann::json::parse(to_json(state).dump())));
      for (int i = 0; i < 3; ++i, ++step) {
        ASSERT_EQ(ranks.step(), expected[static_cast<size_t>(step)]) << "step " << step << " with " << dp << " ranks";
      }
      state = ranks.state();
    }
  }
}

/// Documents of every rank under torchtitan's split.
std::vector<std::vector<std::string>> split(DatasetOptions options, int64_t ranks) {
  std::vector<std::vector<std::string>> texts;
  options.split_ranks = ranks;
  for (options.split_rank = 0; options.split_rank < ranks; ++options.split_rank) {
    texts.push_back(pass(*open_dataset(options)));
  }
  return texts;
}

TEST(UpstreamSplit, AStreamedDatasetGivesWholeFilesWhenTheyDivideEvenly) {
  TemporaryFolder folder;
  for (const char* name : {"a", "b", "c", "d"}) folder.write(std::string("c/") + name + ".txt", name);
  EXPECT_EQ(split(text((folder / "c").string()), 2), (std::vector<std::vector<std::string>>{{"a", "c"}, {"b", "d"}}));
}

TEST(UpstreamSplit, ElseEveryNthSample) {
  TemporaryFolder folder;
  const auto texts = split(text(folder.write("a.jsonl", records(7))), 3);
  EXPECT_EQ(texts, (std::vector<std::vector<std::string>>{{"d0", "d3", "d6"}, {"d1", "d4"}, {"d2", "d5"}}));
}

TEST(UpstreamSplit, ADatasetInMemoryGivesBlocksTheFirstOnesLonger) {
  TemporaryFolder folder;
  DatasetOptions options = text(folder.write("a.jsonl", records(7)));
  options.dataset = "c4_test";
  EXPECT_EQ(split(options, 3), (std::vector<std::vector<std::string>>{{"d0", "d1", "d2"}, {"d3", "d4"}, {"d5", "d6"}}));
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { split(options, 8); }),
                      "7 documents are too few for 8 data-parallel ranks");
}

TEST(UpstreamSplit, EveryRankPacksItsOwnStreamAndAllOfItIsItsBatch) {
  TemporaryFolder folder;
  DatasetOptions options = text(folder.write("a.jsonl", records(60)));
  options.split_ranks = 2;
  options.split_rank = 1;
  BatchPlan plan{/*sequence_length=*/8, /*local_batch=*/2, /*accumulation=*/2,
                 /*dp_degree=*/2,       /*dp_rank=*/1,     true};
  BatchStream stream(open_dataset(options), test::byte_tokenizer(), plan, {});
  ChunkStream chunks(open_dataset(options), test::byte_tokenizer(), {.sequence_length = 8});
  for (int step = 0; step < 5; ++step) {
    const StepBatch batch = *stream.next();
    EXPECT_EQ(batch.samples, 8);
    EXPECT_EQ(batch.valid_tokens, 64);
    for (const MicroBatch& microbatch : batch.microbatches) {
      for (int64_t row = 0; row < 2; ++row) {
        Chunk chunk;
        ASSERT_TRUE(chunks.next(chunk));
        for (int64_t i = 0; i < 8; ++i) {
          ASSERT_EQ(microbatch.tokens[static_cast<size_t>(row * 8 + i)], chunk.tokens[static_cast<size_t>(i)]);
          ASSERT_EQ(microbatch.labels[static_cast<size_t>(row * 8 + i)], chunk.tokens[static_cast<size_t>(i + 1)]);
        }
      }
    }
  }
}

/// Gives chunks that hold its own number.
class Numbered : public ChunkSource {
 public:
  explicit Numbered(int32_t number, int64_t end = 1 << 30) : number_(number), end_(end) {}
  bool next(Chunk& chunk) override {
    if (given_ == end_) return false;
    chunk.tokens = {number_, static_cast<int32_t>(given_++)};
    chunk.document_starts.clear();
    counters_.documents = given_;
    return true;
  }
  StreamState state() const override {
    StreamState state;
    state.chunk = given_;
    state.fingerprint = static_cast<uint64_t>(number_) + 1;
    return state;
  }
  void restore(const StreamState& state) override { given_ = state.chunk; }
  const DataCounters& counters() const override { return counters_; }
  std::vector<std::string> take_notices() override { return {}; }
  std::string reading() const override { return "stream " + std::to_string(number_); }

 private:
  int32_t number_;
  int64_t end_;
  int64_t given_ = 0;
  DataCounters counters_;
};

TEST(Mixture, AtEveryPointEverySourceHasGivenItsShareWithinOneChunk) {
  const std::vector<std::vector<int64_t>> cases{{1},
                                                {1, 1},
                                                {3, 1},
                                                {7, 2, 1},
                                                {1, 1, 1, 97},
                                                {5, 3, 3, 2},
                                                {50, 30, 15, 5},
                                                {999'983, 16, 1},
                                                {1, 2, 3, 4, 5, 6, 7, 8}};
  for (const std::vector<int64_t>& weights : cases) {
    const auto sum = static_cast<double>(std::accumulate(weights.begin(), weights.end(), int64_t{0}));
    std::vector<int64_t> given(weights.size(), 0);
    for (int64_t total = 1; total <= 3000; ++total) {
      ++given[next_in_mixture(weights, given)];
      for (size_t i = 0; i < weights.size(); ++i) {
        const double share = static_cast<double>(total) * static_cast<double>(weights[i]) / sum;
        ASSERT_LT(std::abs(static_cast<double>(given[i]) - share), 1.0) << "source " << i << " of chunk " << total;
      }
    }
  }
}

TEST(Mixture, WeightsAreWholeNumbersOrFractionsThatSumToOne) {
  EXPECT_EQ(integer_weights({3, 1}), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(integer_weights({6, 2, 4}), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(integer_weights({0.7, 0.2, 0.1}), (std::vector<int64_t>{7, 2, 1}));
  auto refusal = [](const std::vector<double>& weights) {
    return message_of(ExitCode::bad_config, [&] { integer_weights(weights); });
  };
  EXPECT_PRED_FORMAT2(test::contains, refusal({0.7, 0.2}), "the weights sum to 0.9 and not to 1");
  EXPECT_PRED_FORMAT2(test::contains, refusal({0.5, 1}), "the weights sum to 1.5 and not to 1");
  EXPECT_PRED_FORMAT2(test::contains, refusal({1, 0}), "weight 0 is not above 0");
  EXPECT_PRED_FORMAT2(test::contains, refusal({1, -2}), "weight -2 is not above 0");
  EXPECT_PRED_FORMAT2(test::contains, refusal({1.0 - 1e-9, 1e-9}), "a weight is below a millionth");
}

std::unique_ptr<ChunkMixture> mixture() {
  std::vector<std::unique_ptr<ChunkSource>> streams;
  for (int32_t i = 0; i < 3; ++i) streams.push_back(std::make_unique<Numbered>(i));
  return std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{7, 2, 1});
}

TEST(Mixture, GoesOnFromAnyPointAndTheStateSurvivesJson) {
  const auto whole = mixture();
  std::vector<std::vector<int32_t>> all;
  std::vector<StreamState> states;
  for (int i = 0; i < 200; ++i) {
    states.push_back(whole->state());
    Chunk chunk;
    ASSERT_TRUE(whole->next(chunk));
    all.push_back(chunk.tokens);
  }
  EXPECT_EQ(whole->counters().documents, 200);
  for (const size_t point : {0u, 1u, 2u, 99u, 150u}) {
    const auto resumed = mixture();
    resumed->restore(stream_state_from_json(to_json(states[point])));
    EXPECT_EQ(resumed->state().chunk, static_cast<int64_t>(point));
    for (size_t i = point; i < all.size(); ++i) {
      Chunk chunk;
      ASSERT_TRUE(resumed->next(chunk));
      ASSERT_EQ(chunk.tokens, all[i]);
    }
  }
}

TEST(Mixture, AStateOfOtherSourcesIsRefused) {
  StreamState single;
  single.chunk = 5;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { mixture()->restore(single); }),
                      "belongs to a single corpus, and this run reads a mixture");
  StreamState two;
  two.sources.resize(2);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { mixture()->restore(two); }),
                      "belongs to a mixture of 2 sources, and this run's has 3");
  ChunkStream stream(open_dataset({}), test::byte_tokenizer(), {.sequence_length = 8});
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { stream.restore(two); }),
                      "belongs to a mixture of 2 sources");
}

TEST(Mixture, AnEmptySourceIsNamed) {
  TemporaryFolder folder;
  std::vector<std::unique_ptr<ChunkSource>> streams;
  for (const std::string& path : {folder.write("a.jsonl", records(50)), folder.write("b.jsonl", "\n\n")}) {
    ChunkOptions options;
    options.sequence_length = 8;
    options.dataset = "mixture (" + path + ")";
    streams.push_back(std::make_unique<ChunkStream>(open_dataset(text(path)), test::byte_tokenizer(), options));
  }
  ChunkMixture mixed(std::move(streams), {1, 1});
  Chunk chunk;
  const std::string message = message_of(ExitCode::bad_data, [&] {
    for (int i = 0; i < 3; ++i) mixed.next(chunk);
  });
  EXPECT_PRED_FORMAT2(test::contains, message, "b.jsonl): there is no document in");
}

TEST(Packing, WithoutLossEveryTokenIsAnInputOnceAndALabelOnce) {
  const std::vector<std::string> texts = test::random_texts(60, 40);
  std::vector<int32_t> stream;
  for (const std::string& text : texts) {
    for (const int32_t id : test::byte_tokenizer()->encode(text, true, true)) stream.push_back(id);
  }
  ChunkOptions options;
  options.sequence_length = 16;
  options.packing = ChunkPacking::lossless;
  options.infinite = false;
  ChunkStream chunks(std::make_unique<test::ListSource>(texts), test::byte_tokenizer(), options);
  Chunk chunk;
  size_t at = 0;
  for (; chunks.next(chunk); at += 16) {
    ASSERT_EQ(chunk.tokens,
              std::vector<int32_t>(stream.begin() + std::ptrdiff_t(at), stream.begin() + std::ptrdiff_t(at) + 17));
  }
  EXPECT_EQ(at, (stream.size() - 1) / 16 * 16);
}

TEST(Packing, ByDocumentNoLabelReachesIntoTheNextOneAndValidTokensAreCounted) {
  ChunkOptions options;
  options.sequence_length = 8;
  options.packing = ChunkPacking::lossless;
  options.infinite = false;
  // BOS a b EOS | BOS c d e f EOS | …: 4 and 6 tokens.
  ChunkStream chunks(std::make_unique<test::ListSource>(std::vector<std::string>{"ab", "cdef", "ghijk", "l", "mnopqr"}),
                     test::byte_tokenizer(), options);
  BatchPlan plan;
  plan.sequence_length = 8;
  plan.local_batch = 3;
  const StepBatch batch = *assemble_step(chunks, plan, {.restart_positions = true, .labels_end_with_document = true});
  const MicroBatch& rows = batch.microbatches[0];
  ASSERT_EQ(batch.samples, 3);
  constexpr int64_t kBos = 256, kEos = 257, kNone = kIgnoredLabel;
  EXPECT_EQ(rows.tokens, (std::vector<int64_t>{kBos, 'a',  'b',  kEos, kBos, 'c', 'd', 'e',  //
                                               'f',  kEos, kBos, 'g',  'h',  'i', 'j', 'k',  //
                                               kEos, kBos, 'l',  kEos, kBos, 'm', 'n', 'o'}));
  EXPECT_EQ(rows.labels, (std::vector<int64_t>{'a',   'b',   kEos, kNone, 'c', 'd', 'e', 'f',   //
                                               kEos,  kNone, 'g',  'h',   'i', 'j', 'k', kEos,  //
                                               kNone, 'l',   kEos, kNone, 'm', 'n', 'o', 'p'}));
  EXPECT_EQ(rows.positions, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3,  //
                                                  0, 1, 0, 1, 2, 3, 4, 5,  //
                                                  0, 0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(rows.document_bounds, (std::vector<std::vector<int32_t>>{{0, 4}, {0, 2}, {0, 1, 4}}));
  EXPECT_EQ(batch.valid_tokens,
            std::count_if(rows.labels.begin(), rows.labels.end(), [](int64_t l) { return l >= 0; }));
}

TEST(Packing, ADocumentThatEndsWithTheRowLosesItsLastLabel) {
  ChunkOptions options;
  options.sequence_length = 4;
  options.packing = ChunkPacking::lossless;
  ChunkStream chunks(std::make_unique<test::ListSource>(std::vector<std::string>{"ab", "cd"}), test::byte_tokenizer(),
                     options);
  BatchPlan plan;
  plan.sequence_length = 4;
  const StepBatch batch = *assemble_step(chunks, plan, {.restart_positions = true, .labels_end_with_document = true});
  EXPECT_EQ(batch.microbatches[0].labels, (std::vector<int64_t>{'a', 'b', 257, kIgnoredLabel}));
  EXPECT_EQ(batch.valid_tokens, 3);
}

TEST(BatchStream, ABatchThatIsGivenBackLeavesNoTraceInLaterOnes) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", records(100));
  for (const bool restart : {false, true}) {
    BatchPlan plan{8, 2, 2, 1, 0};
    BatchOptions options;
    options.restart_positions = restart;
    options.queue_depth = 1;
    options.infinite = false;
    BatchStream kept(open_dataset(text(path)), test::byte_tokenizer(), plan, options);
    BatchStream reused(open_dataset(text(path)), test::byte_tokenizer(), plan, options);
    while (std::optional<StepBatch> expected = kept.next()) {
      std::optional<StepBatch> batch = reused.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->valid_tokens, expected->valid_tokens);
      for (size_t i = 0; i < 2; ++i) {
        const MicroBatch &a = expected->microbatches[i], &b = batch->microbatches[i];
        ASSERT_EQ(a.tokens, b.tokens);
        ASSERT_EQ(a.labels, b.labels);
        ASSERT_EQ(a.positions, b.positions);
        ASSERT_EQ(a.document_bounds, b.document_bounds);
      }
      reused.recycle(std::move(*batch));
    }
    EXPECT_FALSE(reused.next());
  }
}

}  // namespace
}  // namespace titan
