// Sources mixed by weights: which gives the next chunk, and how a mixture goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/corpus/text_files.h"
#include "support/corpora.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/stream/batch_stream.h"
#include "titan/stream/chunk_stream.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

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
  for (const std::vector<double>& weights :
       {std::vector<double>{0.7, 0.2}, {0.5, 1}, {1, 0}, {1, -2}, {1.0 - 1e-9, 1e-9}}) {
    message_of(ExitCode::bad_config, [&] { integer_weights(weights); });
  }
  for (const double weight : {0.0, -2.0, 2e6}) {
    EXPECT_EQ(message_of(ExitCode::bad_config,
                         [&] {
                           integer_weights({1, weight});
                         }),
              fmt::format("weight {} must be above 0 and at most 1,000,000", weight));
  }
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
  ChunkStream stream(open_dataset({.path = test::story_corpus()}), test::byte_tokenizer(), {.sequence_length = 8});
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

}  // namespace
}  // namespace titan
