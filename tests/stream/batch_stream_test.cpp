#include "titan/stream/batch_stream.h"

#include <future>
#include <thread>

#include "support/corpora.h"
#include "support/files.h"
#include "support/texts.h"

namespace titan {
namespace {

using test::byte_tokenizer;
using test::ListSource;
using test::message_of;
using test::random_texts;

std::unique_ptr<ListSource> list(std::vector<std::string> texts = random_texts(50, 60)) {
  return std::make_unique<ListSource>(std::move(texts));
}

BatchPlan plan_of(int64_t length, int64_t local, int64_t accumulation, int64_t dp, int64_t rank) {
  return {
      .sequence_length = length, .local_batch = local, .accumulation = accumulation, .dp_degree = dp, .dp_rank = rank};
}

BatchOptions batch_options(bool infinite = true, bool restart_positions = false) {
  BatchOptions options;
  options.chunks.dataset = "list";
  options.chunks.infinite = infinite;
  options.rows.restart_positions = restart_positions;
  return options;
}

/// Row `row` of a microbatch's tokens, labels or positions.
std::vector<int64_t> row_of(const MicroBatch& batch, const std::vector<int64_t>& values, int64_t row) {
  auto begin = values.begin() + row * batch.sequence_length;
  return {begin, begin + batch.sequence_length};
}

TEST(BatchStream, EveryLayoutSeesTheSameSamplesAtTheSamePlaces) {
  constexpr int64_t kLength = 13, kSteps = 6;
  ChunkOptions chunk_options;
  chunk_options.sequence_length = kLength;
  struct Layout {
    int64_t local, accumulation, dp;
  };
  for (Layout layout : {Layout{1, 1, 1}, {4, 1, 1}, {2, 3, 1}, {1, 1, 4}, {2, 2, 3}}) {
    ChunkStream chunks(list(), byte_tokenizer(), chunk_options);
    std::vector<std::unique_ptr<BatchStream>> ranks;
    for (int64_t rank = 0; rank < layout.dp; ++rank) {
      ranks.push_back(std::make_unique<BatchStream>(
          list(), byte_tokenizer(), plan_of(kLength, layout.local, layout.accumulation, layout.dp, rank),
          batch_options()));
    }
    int64_t global = layout.local * layout.accumulation * layout.dp;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<StepBatch> batches;
      for (auto& rank : ranks) batches.push_back(*rank->next());
      for (int64_t j = 0; j < global; ++j) {
        int64_t a = j / (layout.local * layout.dp);
        int64_t rank = j / layout.local % layout.dp;
        const StepBatch& batch = batches[static_cast<size_t>(rank)];
        const MicroBatch& micro = batch.microbatches[static_cast<size_t>(a)];
        EXPECT_EQ(batch.state.chunk, (step + 1) * global);
        EXPECT_EQ(batch.valid_tokens, global * kLength);
        Chunk chunk;
        chunks.next(chunk);
        EXPECT_EQ(row_of(micro, micro.tokens, j % layout.local),
                  std::vector<int64_t>(chunk.tokens.begin(), chunk.tokens.end() - 1));
        EXPECT_EQ(row_of(micro, micro.labels, j % layout.local),
                  std::vector<int64_t>(chunk.tokens.begin() + 1, chunk.tokens.end()));
      }
      for (auto& rank : ranks) EXPECT_EQ(rank->state(), chunks.state());
    }
  }
}

TEST(BatchStream, PositionsAndBoundsRestartWithEachDocumentWhereAsked) {
  // With T + 1 = 8 the chunks are B a b c E B d E, then B e f g h E B a, then b c E B d E B e: the third begins inside
  // a document, and a new bound with it.
  BatchPlan plan = plan_of(7, 1, 1, 1, 0);
  BatchStream restarting(list({"abc", "d", "efgh"}), byte_tokenizer(), plan, batch_options(true, true));
  BatchStream plain(list({"abc", "d", "efgh"}), byte_tokenizer(), plan, batch_options());
  struct {
    std::vector<int32_t> bounds;
    std::vector<int64_t> positions;
  } expected[] = {{{0, 5}, {0, 1, 2, 3, 4, 0, 1}}, {{0, 6}, {0, 1, 2, 3, 4, 5, 0}}, {{0, 3, 6}, {0, 1, 2, 0, 1, 2, 0}}};
  for (const auto& [bounds, positions] : expected) {
    MicroBatch batch = restarting.next()->microbatches[0];
    EXPECT_EQ(batch.document_bounds[0], bounds);
    EXPECT_EQ(batch.positions, positions);
    batch = plain.next()->microbatches[0];
    EXPECT_EQ(batch.document_bounds[0], bounds);
    EXPECT_EQ(batch.positions, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  }
}

TEST(BatchStream, TheStateIsThatOfTheBatchesHandedOutAndAnyLayoutContinuesFromIt) {
  BatchOptions options = batch_options();
  options.queue_depth = 8;  // the thread runs far ahead
  BatchStream unbroken(list(), byte_tokenizer(), plan_of(11, 3, 2, 1, 0), options);
  for (int i = 0; i < 4; ++i) unbroken.next();
  StreamState state = unbroken.state();
  EXPECT_EQ(state.chunk, 4 * 6);
  auto expected = unbroken.next()->microbatches;

  for (int64_t rank : {0, 1, 2}) {  // 1 × 2 × 3 instead of 3 × 2 × 1: the same global batch
    BatchStream resumed(list(), byte_tokenizer(), plan_of(11, 1, 2, 3, rank), options);
    resumed.next();
    resumed.restore(state);
    auto got = resumed.next()->microbatches;
    for (size_t a : {0, 1}) EXPECT_EQ(got[a].tokens, row_of(expected[a], expected[a].tokens, rank));
  }
}

TEST(BatchStream, AFiniteSourceIsCompletedWithIgnoredRowsThatAllRanksShare) {
  // 10 tokens with T + 1 = 4 are two chunks; the global batch would hold four.
  for (int64_t rank : {0, 1}) {
    BatchStream stream(list({"abcdefgh"}), byte_tokenizer(), plan_of(3, 1, 2, 2, rank), batch_options(false));
    auto batch = stream.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->samples, 2);
    EXPECT_EQ(batch->valid_tokens, 6);
    ASSERT_EQ(batch->microbatches.size(), 2u);
    EXPECT_NE(batch->microbatches[0].labels[0], kIgnoredLabel);
    EXPECT_EQ(batch->microbatches[1].labels, std::vector<int64_t>(3, kIgnoredLabel));
    EXPECT_EQ(batch->microbatches[1].positions, (std::vector<int64_t>{0, 1, 2}));
    EXPECT_FALSE(stream.next());
    stream.restore({});
    EXPECT_TRUE(stream.next());
  }
}

TEST(BatchStream, NoticesAndCountersComeWithTheBatchThatCausedThem) {
  BatchStream stream(list({"abcdef"}), byte_tokenizer(), plan_of(3, 1, 1, 1, 0), batch_options());
  EXPECT_TRUE(stream.next()->notices.empty());
  EXPECT_TRUE(stream.next()->notices.empty());
  auto third = stream.next();
  EXPECT_EQ(third->notices, std::vector<std::string>{"Dataset list is being re-looped"});
  EXPECT_EQ(third->counters.re_loops, 1);
  EXPECT_EQ(third->counters.documents, 2);
}

TEST(BatchStream, ErrorsOfTheThreadReachTheCaller) {
  BatchStream stream(list({"ab"}), byte_tokenizer(), plan_of(16, 2, 1, 1, 0), batch_options());
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { stream.next(); }),
                      "less than one global batch");
}

/// A source whose read hangs until the test lets it go.
class HangingSource : public ListSource {
 public:
  explicit HangingSource(std::shared_future<void> gate) : ListSource({"abcdefgh"}), gate_(std::move(gate)) {}
  bool next(Document& document) override {
    gate_.wait();
    return ListSource::next(document);
  }
  std::string reading() const override { return "/slow/disk/part-3.txt"; }

 private:
  std::shared_future<void> gate_;
};

TEST(BatchStream, AStallPastTheTimeoutNamesTheFileAndTheStreamCanStillGoOn) {
  std::promise<void> release;
  BatchOptions options = batch_options();
  options.timeout = std::chrono::duration<double>(0.001);
  BatchStream stream(std::make_unique<HangingSource>(release.get_future().share()), byte_tokenizer(),
                     plan_of(3, 1, 1, 1, 0), options);
  std::string message = message_of(ExitCode::bad_data, [&] { stream.next(); });
  EXPECT_PRED_FORMAT2(test::contains, message, "while reading /slow/disk/part-3.txt");
  EXPECT_PRED_FORMAT2(test::contains, message, "data.timeout");
  EXPECT_GT(stream.last_wait_seconds(), 0.0);
  release.set_value();
}

TEST(BatchStream, TheBeginningIsRestoredAfterTheBatchThatIsBeingReadHoweverLongThatTakes) {
  std::promise<void> release;
  std::shared_future<void> gate = release.get_future().share();
  /// The second document comes when the test lets it go.
  class SlowSecond : public ListSource {
   public:
    explicit SlowSecond(std::shared_future<void> gate)
        : ListSource({"abcdefgh", "ijklmnop", "qrstuvwx"}), gate_(std::move(gate)) {}
    bool next(Document& document) override {
      if (read_++ == 1) gate_.wait();
      return ListSource::next(document);
    }

   private:
    std::shared_future<void> gate_;
    int read_ = 0;
  };
  BatchStream stream(std::make_unique<SlowSecond>(gate), byte_tokenizer(), plan_of(3, 1, 1, 1, 0), batch_options());
  const std::optional<StepBatch> first = stream.next();
  // Longer than the patience with which a thread is ended otherwise (PrefetchThread).
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2300));
    release.set_value();
  });
  for (int i = 0; i < 2; ++i) {
    stream.restore({});
    const std::optional<StepBatch> again = stream.next();
    ASSERT_TRUE(first && again);
    EXPECT_EQ(again->microbatches[0].tokens, first->microbatches[0].tokens);
    EXPECT_EQ(stream.state().chunk, 1);
  }
  later.join();
}

TEST(BatchStream, ALongWaitEndsWhenItIsAskedToAndTheBatchComesLater) {
  std::promise<void> release;
  BatchStream stream(std::make_unique<HangingSource>(release.get_future().share()), byte_tokenizer(),
                     plan_of(3, 1, 1, 1, 0), batch_options());
  int asked = 0;
  EXPECT_FALSE(stream.next([&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
  release.set_value();
  EXPECT_TRUE(stream.next([] { return false; }));
}

}  // namespace
}  // namespace titan
