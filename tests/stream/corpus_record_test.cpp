// A saved position is accepted with the corpus that it was saved from. With a corpus that changed or grew it is
// refused, and the message names the file that is different.
#include "titan/corpus/corpus_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/checkout.h"
#include "support/corpora.h"
#include "support/files.h"
#include "support/texts.h"
#include "titan/base/text.h"
#include "titan/corpus/tokenize.h"
#include "titan/stream/chunk_stream.h"

namespace titan {
namespace {

using test::message_of;

constexpr int64_t kLength = 24;

class Corpus : public testing::Test {
 protected:
  std::unique_ptr<ChunkStream> open(const DatasetOptions& options) const {
    return std::make_unique<ChunkStream>(open_dataset(options), tokenizer_, ChunkOptions{.sequence_length = kLength});
  }
  std::unique_ptr<ChunkStream> open() const { return open(text((folder_ / "c").string())); }

  /// The state after `chunks` chunks, as a checkpoint holds it.
  static StreamState state_after(ChunkSource& stream, int chunks) {
    Chunk chunk;
    for (int i = 0; i < chunks; ++i) EXPECT_TRUE(stream.next(chunk));
    return stream_state_from_json(nlohmann::json::parse(to_json(stream.state()).dump()));
  }

  std::string refusal(const StreamState& state, ChunkSource& stream) const {
    std::string message = message_of(ExitCode::bad_data, [&] { stream.restore(state); });
    EXPECT_PRED_FORMAT2(test::contains, message, "checkpoint.exclude_from_loading = [\"dataloader\"]");
    return message;
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ = test::byte_tokenizer();
};

TEST_F(Corpus, OneThatGrewIsRefusedWithTheFileAndBothSizes) {
  const std::string before = records(20, "b"), after = before + records(15, "more");
  folder_.write("c/a.jsonl", records(20, "a"));
  folder_.write("c/b.jsonl", before);
  const StreamState early = state_after(*open(), 3), later = state_after(*open(), 90);
  ASSERT_GT(later.epoch, 0);
  folder_.write("c/b.jsonl", after);
  const std::string words = fmt::format("b.jsonl grew from {} to {} bytes. ", with_thousands(std::ssize(before)),
                                        with_thousands(std::ssize(after)));
  EXPECT_PRED_FORMAT2(test::contains, refusal(early, *open()), words);
  EXPECT_PRED_FORMAT2(test::contains, refusal(later, *open()), words);
}

TEST_F(Corpus, FilesAfterTheLastOneAreRefusedWithTheirNumber) {
  folder_.write("c/a.jsonl", records(20));
  const StreamState state = state_after(*open(), 3);
  folder_.write("c/b.txt", "and a file");
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "it has 1 more file after a.jsonl. ");
  folder_.write("c/c.txt", "and another");
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "it has 2 more files after a.jsonl. ");
}

TEST_F(Corpus, IdsThatWereMadeAgainOfAnotherCorpusAreRefused) {
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
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open(ids)), "ids.bin grew from ");
  folder_.write("c/a.jsonl", records(50, "other") + records(20, "more"));
  tokenize_corpus(wanted, ignored);
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open(ids)), "ids.bin changed, first between its bytes 0 and ");
}

TEST_F(Corpus, ASourceOfAMixtureThatGrewIsRefused) {
  const auto mixture = [&] {
    std::vector<std::unique_ptr<ChunkSource>> streams;
    for (const char* name : {"a.jsonl", "b.jsonl"}) streams.push_back(open(text((folder_ / name).string())));
    return std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{3, 1});
  };
  folder_.write("a.jsonl", records(90, "a"));
  folder_.write("b.jsonl", records(90, "b"));
  const StreamState state = state_after(*mixture(), 9);
  mixture()->restore(state);
  folder_.write("b.jsonl", records(90, "b") + records(40, "more"));
  const std::string message = message_of(ExitCode::bad_data, [&] { mixture()->restore(state); });
  EXPECT_PRED_FORMAT2(test::contains, message, "b.jsonl grew from ");
}

TEST_F(Corpus, AnOrderThatDependsOnTheNumberOfDocumentsNamesTheFileThatGrew) {
  DatasetOptions shuffled = text(folder_.write("c/a.jsonl", records(20)));
  shuffled.shuffle_seed = 5;
  const StreamState state = state_after(*open(shuffled), 3);
  folder_.write("c/a.jsonl", records(20) + records(2, "more"));
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open(shuffled)), "a.jsonl grew from ");
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
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "saved with another tokenizer");
}

TEST_F(Corpus, OfManyFilesAFewAreRememberedAndAChangeLiesBetweenTwoOfThem) {
  const auto name = [](int i) { return fmt::format("c/{:04}.jsonl", i); };
  for (int i = 0; i < 500; ++i) folder_.write(name(i), records(2, std::to_string(i)));
  const StreamState state = state_after(*open(), 5);
  EXPECT_LE(state.corpus.files.size(), kCorpusSamples + 1);
  EXPECT_LT(to_json(state).dump().size(), 16'000u);
  for (int i = 500; i < 520; ++i) folder_.write(name(i), records(2, std::to_string(i)));
  EXPECT_PRED_FORMAT2(test::contains, refusal(state, *open()), "it has 20 more files after 0499.jsonl");
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
