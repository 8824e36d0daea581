// A corpus that grew at its end is read on from a saved position as if it had always been that long; any other change
// is refused by the name of the part that changed.
#include "titan/data/corpus_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "corpora.h"
#include "fixtures.h"
#include "packed.h"
#include "src/data/text_files.h"
#include "support/checkout.h"
#include "titan/base/text.h"
#include "titan/data/chunk_stream.h"
#include "titan/data/tokenize.h"

namespace titan {
namespace {

using test::message_of;

constexpr int64_t kLength = 24;
constexpr size_t kLargest = 400;  // bytes of a document of a .txt file

class Corpus : public testing::Test {
 protected:
  std::unique_ptr<ChunkStream> open(const DatasetOptions& options) const {
    return std::make_unique<ChunkStream>(open_dataset(options), tokenizer_, ChunkOptions{.sequence_length = kLength});
  }
  std::unique_ptr<ChunkStream> open() const { return open(text((folder_ / "c").string())); }
  /// .txt files whose documents are short.
  std::unique_ptr<ChunkStream> open_sections() const {
    return std::make_unique<ChunkStream>(
        std::make_unique<TextFileSource>((folder_ / "c").string(), "text", BadRecord::error, kLargest), tokenizer_,
        ChunkOptions{.sequence_length = kLength});
  }

  /// The state after `chunks` chunks, as a checkpoint holds it.
  static StreamState state_after(ChunkSource& stream, int chunks) {
    Chunk chunk;
    for (int i = 0; i < chunks; ++i) EXPECT_TRUE(stream.next(chunk));
    return stream_state_from_json(nlohmann::json::parse(to_json(stream.state()).dump()));
  }

  /// `resumed`, restored at `state`, gives what `whole` gives after as many chunks, for three passes.
  static void expect_continues(ChunkSource& resumed, const StreamState& state, ChunkSource& whole) {
    resumed.restore(state);
    const std::vector<std::string> notices = resumed.take_notices();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_PRED_FORMAT2(test::contains, notices[0], "it grew at its end, ");
    Chunk expected, got;
    for (int64_t i = 0; i < state.chunk; ++i) ASSERT_TRUE(whole.next(expected));
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(whole.next(expected));
      ASSERT_TRUE(resumed.next(got));
      ASSERT_EQ(got.tokens, expected.tokens) << "chunk " << i << " after the resume";
      ASSERT_EQ(got.document_starts, expected.document_starts);
    }
    EXPECT_EQ(resumed.state(), whole.state());
  }

  std::string refusal(const StreamState& state, ChunkSource& stream) const {
    std::string message = message_of(ExitCode::bad_data, [&] { stream.restore(state); });
    EXPECT_PRED_FORMAT2(test::contains, message, "checkpoint.exclude_from_loading = [\"dataloader\"]");
    return message;
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ = test::byte_tokenizer();
};

TEST_F(Corpus, RecordsAddedToTheLastFileOrInFilesAfterItAreReadAfterTheRest) {
  folder_.write("c/a.jsonl", records(20, "a"));
  folder_.write("c/b.jsonl", records(20, "b"));
  const StreamState state = state_after(*open(), 7);
  folder_.write("c/b.jsonl", records(20, "b") + records(15, "more"));
  expect_continues(*open(), state, *open());
  folder_.write("c/c.txt", "and a file");
  expect_continues(*open(), state, *open());
}

TEST_F(Corpus, APositionAtTheVeryEndGoesOnWithWhatCame) {
  folder_.write("c/a.jsonl", "{\"text\": \"" + std::string(2 * kLength, 'x') + "\"}");  // 50 tokens: two chunks of 25
  const StreamState state = state_after(*open(), 2);
  folder_.write("c/a.jsonl", "{\"text\": \"" + std::string(2 * kLength, 'x') + "\"}\n" + records(9));
  expect_continues(*open(), state, *open());
}

TEST_F(Corpus, ALaterPassReadsWhatCameAtItsEndToo) {
  folder_.write("c/a.jsonl", records(20));
  const StreamState state = state_after(*open(), 30);
  ASSERT_GT(state.epoch, 0);
  folder_.write("c/a.jsonl", records(20) + "{\"text\": \"new\"}\n");
  const auto resumed = open();
  resumed->restore(state);
  std::string all;
  Chunk chunk;
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(resumed->next(chunk));
    all += tokenizer_->decode(chunk.tokens);
  }
  EXPECT_PRED_FORMAT2(test::contains, all, "new");
}

TEST_F(Corpus, EveryNthRecordOfOneRankGoesOn) {
  DatasetOptions options = text(folder_.write("c/a.jsonl", records(60)));
  options.split_ranks = 3;
  options.split_rank = 1;
  const StreamState state = state_after(*open(options), 3);
  folder_.write("c/a.jsonl", records(60) + records(31, "more"));
  expect_continues(*open(options), state, *open(options));
}

TEST_F(Corpus, ATextFileGoesOnUnlessTheRunStoppedInWhatWasItsLastDocument) {
  const std::string letters = test::random_text(U"abcdefgh ", 7 * kLargest + 100, 7);
  folder_.write("c/a.txt", letters);
  const StreamState early = state_after(*open_sections(), 10), late = state_after(*open_sections(), 116);
  ASSERT_EQ(late.document.byte, static_cast<int64_t>(7 * kLargest));
  folder_.write("c/a.txt", letters + letters);
  expect_continues(*open_sections(), early, *open_sections());
  EXPECT_PRED_FORMAT2(test::contains, refusal(late, *open_sections()), "add text as a new file");
}

TEST_F(Corpus, IdsThatWereMadeAgainOfALongerCorpusGoOn) {
  tokenizer_ = open_tokenizer(checkout() / "configs/tokenizers/stories.model");
  Tokenization wanted;
  wanted.tokenizer = checkout() / "configs/tokenizers/stories.model";
  wanted.output = folder_ / "ids.bin";
  wanted.overwrite = true;
  wanted.threads = 1;
  std::ostringstream ignored;
  const DatasetOptions ids = text(wanted.output.string());
  wanted.dataset = text(folder_.write("c/a.jsonl", records(50)));
  tokenize_corpus(wanted, ignored);
  const StreamState state = state_after(*open(ids), 4);
  folder_.write("c/a.jsonl", records(50) + records(20, "more"));
  tokenize_corpus(wanted, ignored);
  expect_continues(*open(ids), state, *open(ids));
  folder_.write("c/a.jsonl", records(50, "other") + records(20, "more"));
  tokenize_corpus(wanted, ignored);
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open(ids)), "ids.bin changed, first between its bytes 0 and ");
}

TEST_F(Corpus, EachSourceOfAMixtureMayGrow) {
  const auto mixture = [&] {
    std::vector<std::unique_ptr<ChunkSource>> streams;
    for (const char* name : {"a.jsonl", "b.jsonl"}) streams.push_back(open(text((folder_ / name).string())));
    return std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{3, 1});
  };
  folder_.write("a.jsonl", records(90, "a"));
  folder_.write("b.jsonl", records(90, "b"));
  const StreamState state = state_after(*mixture(), 9);
  folder_.write("b.jsonl", records(90, "b") + records(40, "more"));
  expect_continues(*mixture(), state, *mixture());
}

TEST_F(Corpus, AnOrderThatDependsOnTheNumberOfDocumentsIsRefusedByName) {
  DatasetOptions shuffled = text(folder_.write("c/a.jsonl", records(20)));
  DatasetOptions block = shuffled;
  shuffled.shuffle_seed = 5;
  block.dataset = "c4_test";
  block.split_ranks = 2;
  const StreamState of_shuffled = state_after(*open(shuffled), 3), of_block = state_after(*open(block), 3);
  folder_.write("c/a.jsonl", records(20) + records(2, "more"));
  const std::string message = refusal(of_shuffled, *open(shuffled));
  EXPECT_PRED_FORMAT2(test::contains, message, "it grew at its end, ");
  EXPECT_PRED_FORMAT2(test::contains, message, "data.shuffle draws the order");
  EXPECT_PRED_FORMAT2(test::contains, refusal(of_block, *open(block)), "into blocks by the number of documents");
}

TEST_F(Corpus, AGrownFileWhoseOldEndCannotBeKeptIsRefused) {
  const DatasetOptions packed = text(folder_.write("a.jsonl.gz", test::gzip(records(30))));
  const StreamState of_packed = state_after(*open(packed), 3);
  folder_.write("a.jsonl.gz", test::gzip(records(30)) + test::gzip(records(9, "more")));
  EXPECT_PRED_FORMAT2(test::contains, refusal(of_packed, *open(packed)), "of a packed file");
  const DatasetOptions line = text(folder_.write("b.jsonl", records(30) + "{\"text\": \"end\"}"));
  const StreamState of_line = state_after(*open(line), 3);
  folder_.write("b.jsonl", records(30) + "{\"text\": \"end\"}, {\"text\": \"end\"}\n");
  EXPECT_PRED_FORMAT2(test::contains, refusal(of_line, *open(line)), "its last line is longer now");
}

TEST_F(Corpus, AnyOtherChangeIsRefusedWithTheFileAndThePlace) {
  const auto write = [&] {
    std::filesystem::remove_all(folder_ / "c");
    for (const char* name : {"b", "d", "f"}) folder_.write(fmt::format("c/{}.jsonl", name), records(900, name));
  };
  write();
  const int64_t bytes = static_cast<int64_t>(records(900, "d").size());
  const StreamState state = state_after(*open(), 3);
  const auto says = [&](const std::string& words) {
    EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), words);
    write();
  };
  open()->restore(state);  // the same: nothing is said
  folder_.write("c/a.jsonl", records(3));
  says("a.jsonl is where b.jsonl was");
  folder_.write("c/d.jsonl", records(900, "d") + records(1));
  says(fmt::format("d.jsonl grew from {} to ", with_thousands(bytes)));
  std::filesystem::resize_file(folder_ / "c/d.jsonl", static_cast<uintmax_t>(bytes - 1));
  says(fmt::format("d.jsonl changed, first between its bytes 12,288 and {0}; it had {0} bytes", with_thousands(bytes)));
  std::filesystem::remove(folder_ / "c/f.jsonl");
  says("f.jsonl is missing: there were 3 files or more, and there are 2");
  std::string changed = records(900, "f");  // as long as before
  changed[9000] = changed[9000] == '7' ? '8' : '7';
  folder_.write("c/f.jsonl", changed);
  says("f.jsonl changed, first between its bytes 8,192 and 12,288.");
  folder_.write("c/f.jsonl", "{\"text\": \"first\"}\n" + records(900, "f"));
  says("f.jsonl changed, first between its bytes 0 and 4,096; it had ");
  DatasetOptions other_field = text((folder_ / "c").string());
  other_field.text_field = "body";
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open(other_field)), "it was read as text (field text, ");
  tokenizer_ = std::make_shared<TiktokenTokenizer>(test::bytes_and({"ab"}));
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "tokens of another tokenizer");
}

TEST_F(Corpus, OfManyFilesAFewAreRememberedAndAChangeLiesBetweenTwoOfThem) {
  const auto name = [](int i) { return fmt::format("c/{:04}.jsonl", i); };
  for (int i = 0; i < 500; ++i) folder_.write(name(i), records(2, std::to_string(i)));
  const StreamState state = state_after(*open(), 5);
  EXPECT_LE(state.corpus.files.size(), kCorpusSamples + 1);
  EXPECT_LT(to_json(state).dump().size(), 16'000u);
  for (int i = 500; i < 520; ++i) folder_.write(name(i), records(2, std::to_string(i)));
  expect_continues(*open(), state, *open());
  folder_.write(name(333), records(3));
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "the files between 0328.jsonl and 0336.jsonl changed");
}

TEST_F(Corpus, AStateOfBeforeThatRemembersNoFilesFitsTheSameNamesAndSizesOnly) {
  folder_.write("c/a.jsonl", records(20));
  StreamState state = state_after(*open(), 3);
  state.corpus = {};
  open()->restore(state);
  folder_.write("c/a.jsonl", records(21));
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "another corpus or tokenizer");
}

}  // namespace
}  // namespace titan
