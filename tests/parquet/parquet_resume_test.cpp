// A stream of Parquet files resumed at random places gives the batches of the undisturbed one, in every order, in a
// mixture and on another number of ranks; its batches are those of the same texts as JSON lines.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parquet/written_file.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/random_sequence.h"
#include "support/texts.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

constexpr int64_t kGlobalBatch = 4;
constexpr int kPlaces = 20;
constexpr int kSteps = 400;
constexpr int kStepsAfter = 40;

struct Corpora {
  Corpora() {
    std::string lines;
    std::vector<std::optional<std::string>> texts;
    for (size_t i = 0; i < 300; ++i) {
      texts.push_back(test::stories()[i]);
      lines += nlohmann::json{{"text", *texts.back()}}.dump() + "\n";
    }
    folder.write("jsonl/a.jsonl", lines);
    test::write_texts(folder / "parquet/a.parquet", {texts.begin(), texts.begin() + 200}, 30);
    test::write_texts(folder / "parquet/b.parquet", {texts.begin() + 200, texts.end()}, 100);
  }
  test::TemporaryFolder folder;
};

class ParquetResume : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { corpora_ = std::make_unique<Corpora>(); }
  static void TearDownTestSuite() { corpora_.reset(); }

  static std::unique_ptr<DocumentSource> dataset(const char* kind) {
    DatasetOptions options;
    options.path = (corpora_->folder / kind).string();
    if (GetParam() == "shuffled") options.shuffle_seed = 11;
    return open_dataset(options);
  }

  static std::unique_ptr<BatchStream> open(const char* kind, int64_t ranks = 1, int64_t rank = 0) {
    static const auto tokenizer = open_tokenizer(checkout() / "configs/tokenizers/stories.model");
    const BatchPlan plan{/*sequence_length=*/64, kGlobalBatch / ranks, 1, ranks, rank};
    const BatchOptions options;
    if (GetParam() != "mixture") return std::make_unique<BatchStream>(dataset(kind), tokenizer, plan, options);
    std::vector<std::unique_ptr<ChunkSource>> streams;
    for (const char* one : {kind, "jsonl"}) {
      streams.push_back(std::make_unique<ChunkStream>(dataset(one), tokenizer, chunk_options(plan, options)));
    }
    return std::make_unique<BatchStream>(std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{5, 2}),
                                         plan, options);
  }

  static std::vector<int64_t> tokens_of(BatchStream& stream) {
    std::optional<StepBatch> batch = stream.next();
    return batch ? batch->microbatches[0].tokens : std::vector<int64_t>();
  }

  static inline std::unique_ptr<Corpora> corpora_;
};

INSTANTIATE_TEST_SUITE_P(Orders, ParquetResume, testing::Values("sequential", "shuffled", "mixture"),
                         [](const auto& info) { return info.param; });

TEST_P(ParquetResume, AtTwentyRandomPlacesIsExactOnOneRankAndOnTwo) {
  const auto whole = open("parquet");
  std::vector<std::vector<int64_t>> tokens;
  std::vector<std::string> states;  // as a checkpoint holds them
  for (int i = 0; i < kSteps + kStepsAfter; ++i) {
    states.push_back(to_json(whole->state()).dump());
    tokens.push_back(tokens_of(*whole));
  }
  PhiloxSequence random(9);
  for (int place = 0; place < kPlaces; ++place) {
    const size_t from = random.below(kSteps);
    const StreamState state = stream_state_from_json(nlohmann::json::parse(states[from]));
    for (const int64_t ranks : {1, 2}) {
      std::vector<std::unique_ptr<BatchStream>> streams;
      for (int64_t rank = 0; rank < ranks; ++rank) streams.push_back(open("parquet", ranks, rank));
      for (const auto& stream : streams) stream->restore(state);
      for (size_t i = from; i < from + kStepsAfter; ++i) {
        std::vector<int64_t> joined;
        for (const auto& stream : streams) {
          const std::vector<int64_t> part = tokens_of(*stream);
          joined.insert(joined.end(), part.begin(), part.end());
        }
        ASSERT_EQ(joined, tokens[i]) << "step " << i << " of a stream resumed at " << from << " on " << ranks;
      }
    }
  }
}

/// A position as messages say it: where the document is stored, if the order is that of the files.
TEST_P(ParquetResume, SaysAPositionInWords) {
  const auto stream = open("parquet");
  const std::string path = (corpora_->folder / "parquet").string();
  const std::string first = stream->place_of({});
  for (int i = 0; i < 3; ++i) tokens_of(*stream);
  const StreamState state = stream->state();
  const std::string place = stream->place_of(state);
  if (GetParam() == "mixture") {
    EXPECT_EQ(first, "chunk 0");
    EXPECT_EQ(place, "chunk 12");
    return;
  }
  EXPECT_TRUE(first.starts_with("the beginning of " + path)) << first;
  const SourcePosition& document = state.document;
  EXPECT_TRUE(
      place.starts_with(fmt::format("token {} of document {} ({}", state.token_offset, document.document, path)))
      << place;
  const std::string end = GetParam() == "sequential"
                              ? fmt::format("/a.parquet, row group {}, row {})", document.byte, document.line - 1)
                              : "300 documents shuffled with seed 11)";
  EXPECT_TRUE(place.ends_with(end)) << place;
}

/// Without shuffling, for which row groups have an order of their own.
class ParquetBatches : public ParquetResume {};
INSTANTIATE_TEST_SUITE_P(Orders, ParquetBatches, testing::Values("sequential", "mixture"),
                         [](const auto& info) { return info.param; });

TEST_P(ParquetBatches, AreThoseOfTheSameTextsAsJsonLines) {
  const auto parquet = open("parquet"), lines = open("jsonl");
  for (int i = 0; i < kSteps; ++i) ASSERT_EQ(tokens_of(*parquet), tokens_of(*lines)) << "step " << i;
}

}  // namespace
}  // namespace titan
