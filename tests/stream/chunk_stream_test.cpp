#include "titan/stream/chunk_stream.h"

#include <nlohmann/json.hpp>

#include "src/corpus/text_files.h"
#include "support/corpora.h"
#include "support/files.h"
#include "support/texts.h"
#include "tests/stream/counters.h"

namespace titan {
namespace {

using test::byte_tokenizer;
using test::ListSource;
using test::message_of;
using test::random_texts;

ChunkOptions chunk_options(int64_t length, bool infinite = true) {
  ChunkOptions options;
  options.sequence_length = length;
  options.infinite = infinite;
  options.dataset = "list";
  return options;
}

ChunkStream stream_of(std::vector<std::string> texts, int64_t length, bool infinite = true) {
  return ChunkStream(std::make_unique<ListSource>(std::move(texts)), byte_tokenizer(), chunk_options(length, infinite));
}

std::vector<Chunk> take(ChunkStream& stream, size_t count) {
  std::vector<Chunk> chunks(count);
  for (Chunk& chunk : chunks) EXPECT_TRUE(stream.next(chunk));
  return chunks;
}

void expect_equal(const Chunk& a, const Chunk& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.document_starts, b.document_starts);
}

TEST(ChunkStream, ChunksAreTheDocumentsOneAfterTheOtherWithBeginAndEnd) {
  auto texts = random_texts(200, 40);
  std::vector<int32_t> all;
  std::vector<bool> starts;
  for (int pass = 0; pass < 3; ++pass) {
    for (const auto& text : texts) {
      starts.push_back(true);
      all.push_back(256);
      all.insert(all.end(), text.begin(), text.end());
      all.push_back(257);
      starts.resize(all.size(), false);
    }
  }
  for (int64_t length : {1, 7, 64, 500}) {
    ChunkStream stream = stream_of(texts, length);
    for (size_t at = 0; at + static_cast<size_t>(length) + 1 <= all.size(); at += static_cast<size_t>(length) + 1) {
      Chunk chunk;
      ASSERT_TRUE(stream.next(chunk));
      ASSERT_EQ(chunk.tokens, std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(at),
                                                   all.begin() + static_cast<std::ptrdiff_t>(at) + length + 1));
      std::vector<int32_t> expected_starts;
      for (int32_t i = 0; i < length; ++i) {
        if (starts[at + static_cast<size_t>(i)]) expected_starts.push_back(i);
      }
      ASSERT_EQ(chunk.document_starts, expected_starts);
    }
  }
}

TEST(ChunkStream, AChunkThatBeginsInsideADocumentSaysSo) {
  ChunkStream stream = stream_of({"abcdefgh", "x"}, 4);
  auto chunks = take(stream, 3);
  EXPECT_FALSE(chunks[0].begins_inside_document());
  EXPECT_TRUE(chunks[1].begins_inside_document());
  // B x E B a: documents start at 0 and 3.
  EXPECT_EQ(chunks[2].document_starts, (std::vector<int32_t>{0, 3}));
  EXPECT_FALSE(chunks[2].begins_inside_document());
}

TEST(ChunkStream, AnyPointIsTakenUpAgainExactly) {
  auto texts = random_texts(30, 60, 3);
  for (int64_t length : {1, 5, 31, 200}) {
    ChunkStream unbroken = stream_of(texts, length);
    std::vector<StreamState> states{unbroken.state()};
    std::vector<Chunk> chunks;
    for (int i = 0; i < 60; ++i) {
      chunks.push_back(take(unbroken, 1)[0]);
      states.push_back(unbroken.state());
    }
    for (size_t from = 0; from < chunks.size(); from += 7) {
      ChunkStream resumed = stream_of(texts, length);
      resumed.restore(stream_state_from_json(nlohmann::json::parse(to_json(states[from]).dump())));
      for (size_t i = from; i < chunks.size(); ++i) {
        EXPECT_EQ(resumed.state(), states[i]) << "length " << length << ", from " << from << ", chunk " << i;
        expect_equal(take(resumed, 1)[0], chunks[i]);
      }
    }
  }
}

TEST(ChunkStream, FilesAreTakenUpAgainExactly) {
  test::TemporaryFolder folder;
  std::string lines;
  for (const auto& text : random_texts(40, 80, 4)) lines += "{\"text\": \"" + text + "\"}\nbroken\n";
  folder.write("a.jsonl", lines);
  folder.write("b.txt", random_texts(1, 3000, 5)[0] + "\n\nabc\n\n");
  auto open = [&] {
    return ChunkStream(std::make_unique<TextFileSource>(folder.string(), "text", BadRecord::skip, 100),
                       byte_tokenizer(), chunk_options(37));
  };
  ChunkStream unbroken = open();
  for (int i = 0; i < 40; ++i) {
    take(unbroken, 1 + static_cast<size_t>(i) % 9);
    ChunkStream resumed = open();
    resumed.restore(unbroken.state());
    StreamState here = unbroken.state();
    DataCounters sum = unbroken.counters();
    auto expected = take(unbroken, 5), got = take(resumed, 5);
    sum += resumed.counters();
    EXPECT_EQ(test::so_far(sum), test::so_far(unbroken.counters()));
    for (size_t j = 0; j < 5; ++j) expect_equal(got[j], expected[j]);
    EXPECT_EQ(resumed.state(), unbroken.state());
    unbroken.restore(here);
  }
}

TEST(ChunkStream, TheStateStaysSmallWhateverTheDocument) {
  ChunkStream stream = stream_of({std::string(1'000'000, 'x')}, 8);
  take(stream, 100);
  EXPECT_LT(to_json(stream.state()).dump().size(), 300u);
}

TEST(ChunkStream, AFiniteSourceEndsAndItsPartialLastChunkIsDropped) {
  ChunkStream stream = stream_of({"abcdefgh"}, 3, false);  // 10 tokens: two chunks of 4 and a rest
  take(stream, 2);
  Chunk chunk;
  EXPECT_FALSE(stream.next(chunk));
  EXPECT_FALSE(stream.next(chunk));
  EXPECT_EQ(stream.take_notices(), std::vector<std::string>{"Dataset list has run out of data"});
  stream.restore({});
  take(stream, 2);
}

TEST(ChunkStream, AnInfiniteSourceBeginsAgainSaysSoAndCounts) {
  ChunkStream stream = stream_of({"abcdef"}, 3);  // 8 tokens a pass, 2 chunks
  take(stream, 2);
  EXPECT_TRUE(stream.take_notices().empty());
  take(stream, 3);
  EXPECT_EQ(stream.take_notices(), (std::vector<std::string>(2, "Dataset list is being re-looped")));
  EXPECT_EQ(stream.counters().re_loops, 2);
  EXPECT_EQ(stream.counters().documents, 3);
  EXPECT_EQ(stream.counters().tokens, 24);
  EXPECT_EQ(stream.state().epoch, 2);
}

TEST(ChunkStream, EmptyAndTooShortSourcesAreErrorsWithTheNumbers) {
  Chunk chunk;
  ChunkStream none = stream_of({}, 8);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { none.next(chunk); }),
                      "there is no document in");
  ChunkOptions options = chunk_options(8);
  options.chunks_needed = 4;
  ChunkStream few(std::make_unique<ListSource>(std::vector<std::string>{"abc", "defg"}), byte_tokenizer(), options);
  std::string message = message_of(ExitCode::bad_data, [&] {
    while (true) few.next(chunk);
  });
  EXPECT_PRED_FORMAT2(test::contains, message, "holds 11 tokens, less than one global batch: 4 × 9 = 36");
  EXPECT_PRED_FORMAT2(test::contains, message, "lower training.seq_len");
}

TEST(ChunkStream, ASourceWithOnlyBadRecordsIsAnErrorThatCountsThem) {
  test::TemporaryFolder folder;
  auto source = std::make_unique<TextFileSource>(folder.write("a.jsonl", "x\ny\n"), "text", BadRecord::skip);
  ChunkStream stream(std::move(source), byte_tokenizer(), chunk_options(8));
  Chunk chunk;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { stream.next(chunk); }),
                      "all 2 records were skipped as bad");
}

TEST(ChunkStream, AStateOfAnotherCorpusOrTokenizerIsRefused) {
  ChunkStream one = stream_of({"abc", "def"}, 2);
  take(one, 2);
  ChunkStream other_texts = stream_of({"abc"}, 2);
  ChunkStream other_tokenizer(std::make_unique<ListSource>(std::vector<std::string>{"abc", "def"}),
                              std::make_shared<TiktokenTokenizer>(test::bytes_and({"ab"})), chunk_options(2));
  for (ChunkStream* stream : {&other_texts, &other_tokenizer}) {
    EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { stream->restore(one.state()); }),
                        "another corpus or tokenizer");
  }
}

TEST(StreamState, DamagedJsonIsAnErrorOfTheData) {
  nlohmann::json good =
      to_json(StreamState{.chunk = 3, .epoch = 1, .document = {}, .token_offset = 9, .fingerprint = 5, .sources = {}});
  EXPECT_EQ(stream_state_from_json(good).token_offset, 9);
  auto damaged = [&](auto change) {
    nlohmann::json json = good;
    change(json);
    return message_of(ExitCode::bad_data, [&] { stream_state_from_json(json); });
  };
  EXPECT_PRED_FORMAT2(test::contains, damaged([](auto& json) { json.erase("chunk"); }), "chunk");
  EXPECT_PRED_FORMAT2(test::contains, damaged([](auto& json) { json["epoch"] = "x"; }), "cannot be read");
  EXPECT_PRED_FORMAT2(test::contains, damaged([](auto& json) { json["token_offset"] = -1; }), "negative token_offset");
  EXPECT_PRED_FORMAT2(test::contains, damaged([](auto& json) { json["fingerprint"] = "?"; }), "fingerprint");
}

}  // namespace
}  // namespace titan
