// The orders in which documents come: shuffled, split as torchtitan does, mixed by weights; and how chunks follow.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "src/corpus/ordered_sources.h"
#include "src/corpus/text_files.h"
#include "support/corpora.h"
#include "support/files.h"
#include "support/packed.h"
#include "support/texts.h"
#include "titan/stream/batch_stream.h"

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
  EXPECT_LT(chi_squared, 190.0);  // 121 degrees of freedom: 99.99 % are below
}

TEST(PassOrder, TakesTwoBlocksAtATimeAndEveryDocumentOnce) {
  const std::vector<std::vector<int64_t>> corpora{{5}, {1, 1}, {7, 1, 30}, {10, 10, 10, 10}, {3, 900, 2, 40, 1, 1, 8}};
  for (const std::vector<int64_t>& blocks : corpora) {
    std::vector<size_t> block_of;
    for (size_t block = 0; block < blocks.size(); ++block) block_of.insert(block_of.end(), blocks[block], block);
    const auto documents = std::ssize(block_of);
    PassOrder order(3, documents, blocks);
    for (int64_t pass = 0; pass < 5; ++pass) {
      order.begin(pass);
      std::set<int64_t> seen;
      std::set<size_t> open, closed;
      for (int64_t place = 0; place < documents; ++place) {
        const int64_t index = order(place);
        seen.insert(index);
        const size_t block = block_of[static_cast<size_t>(index)];
        EXPECT_FALSE(closed.contains(block)) << "a block that was left is needed again";
        open.insert(block);
        if (open.size() <= 2) continue;
        open.erase(block);
        closed.insert(open.begin(), open.end());
        open = {block};
      }
      EXPECT_EQ(std::ssize(seen), documents);
      EXPECT_TRUE(*seen.begin() == 0 && *seen.rbegin() == documents - 1);
    }
  }
}

std::vector<std::string> pass(DocumentSource& source) {
  std::vector<std::string> texts;
  for (Document document; source.next(document);) texts.push_back(document.text);
  return texts;
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
                      "a.jsonl:4: this line is not JSON");
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

TEST(BatchStream, ABatchThatIsGivenBackLeavesNoTraceInLaterOnes) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", records(100));
  for (const bool restart : {false, true}) {
    BatchPlan plan{8, 2, 2, 1, 0};
    BatchOptions options;
    options.rows.restart_positions = restart;
    options.queue_depth = 1;
    options.chunks.infinite = false;
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
