// Conversations as training reads them: records, packing, labels that count, long ones, and resuming at every point.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/packed.h"
#include "support/texts.h"
#include "tests/stream/counters.h"
#include "titan/stream/batch_stream.h"
#include "titan/stream/chunk_stream.h"

namespace titan {
namespace {

using nlohmann::json;
using test::byte_tokenizer;
using test::contains;
using test::message_of;
using test::TemporaryFolder;

/// The user's text, ">", the assistant's text, end-of-text: as many ids as that has characters.
std::shared_ptr<const ChatTemplate> short_template(bool all_count = false) {
  return std::make_shared<ChatTemplate>(
      ChatTemplateOptions{.name = "custom",
                          .custom = {.user_suffix = ">", .assistant_suffix = "<|end_of_text|>"},
                          .all_count = all_count},
      byte_tokenizer());
}

std::string chat_record(const std::string& prompt, const std::string& completion) {
  return json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
}

DatasetOptions chat_dataset(const std::string& path) {
  return {.dataset = "chat", .path = path, .chat = short_template()};
}

ChunkOptions conversation_chunks(int64_t length, bool infinite = false) {
  return {.sequence_length = length, .packing = ChunkPacking::conversations, .infinite = infinite, .dataset = "chat"};
}

std::unique_ptr<ChunkStream> open_chat(const DatasetOptions& options, const ChunkOptions& chunks) {
  return std::make_unique<ChunkStream>(open_dataset(options), byte_tokenizer(), chunks);
}

/// Tokens as text, "|" for end-of-text and "_" for padding; below it, "^" for the tokens that count as labels.
std::string shown_chunk(const Chunk& chunk) {
  std::string text, marks;
  for (size_t i = 0; i < chunk.tokens.size(); ++i) {
    const int32_t id = chunk.tokens[i];
    text += id == 257 ? '|' : id == 0 ? '_' : static_cast<char>(id);
    marks += chunk.counts[i] != 0 ? '^' : ' ';
  }
  return text + "\n" + marks;
}

TEST(Conversations, WholeOnesFillASequenceAndTheRestIsPaddingOfItsOwn) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl", chat_record("ab", "cd") + chat_record("e", "f") + chat_record("gh", "ijk") +
                                  chat_record("", "lmnopqrs") + chat_record("t", "u"));
  const auto stream = open_chat(chat_dataset(path), conversation_chunks(10));
  Chunk chunk;
  ASSERT_TRUE(stream->next(chunk));  // 6 + 4 of 11
  EXPECT_EQ(shown_chunk(chunk), "ab>cd|e>f|_\n   ^^^  ^^ ");
  EXPECT_EQ(chunk.document_starts, (std::vector<int32_t>{0, 6}));
  EXPECT_TRUE(chunk.ends_document);
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(shown_chunk(chunk), "gh>ijk|____\n   ^^^^    ");
  EXPECT_EQ(chunk.document_starts, (std::vector<int32_t>{0, 7}));
  EXPECT_FALSE(chunk.ends_document);
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(shown_chunk(chunk), ">lmnopqrs|_\n ^^^^^^^^^ ");
  ASSERT_TRUE(stream->next(chunk));  // the last one of a finite source is padded, not dropped
  EXPECT_EQ(shown_chunk(chunk), "t>u|_______\n  ^^       ");
  EXPECT_FALSE(stream->next(chunk));
  EXPECT_EQ(stream->counters().documents, 5);
  EXPECT_EQ(stream->counters().tokens, 6 + 4 + 7 + 10 + 4);
}

TEST(Conversations, ABatchCountsTheLabelsThatCountOnEveryRank) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl", chat_record("ab", "cd") + chat_record("e", "f") + chat_record("gh", "ijk"));
  for (const bool all_count : {false, true}) {
    DatasetOptions options = chat_dataset(path);
    options.chat = short_template(all_count);
    int64_t counted = 0;
    for (int64_t rank = 0; rank < 2; ++rank) {
      BatchOptions batches{.chunks = {.infinite = false, .dataset = "chat"}, .rows = {.restart_positions = true}};
      batches.chunks.packing = ChunkPacking::conversations;
      const BatchPlan plan{.sequence_length = 10, .local_batch = 1, .dp_degree = 2, .dp_rank = rank};
      BatchStream stream(open_dataset(options), byte_tokenizer(), plan, batches);
      const std::optional<StepBatch> step = stream.next();
      ASSERT_TRUE(step);
      EXPECT_EQ(step->valid_tokens, all_count ? 5 + 3 + 6 : 3 + 2 + 4);
      const MicroBatch& batch = step->microbatches[0];
      counted += std::count_if(batch.labels.begin(), batch.labels.end(), [](int64_t l) { return l != kIgnoredLabel; });
      if (rank == 1) continue;
      EXPECT_EQ(batch.positions, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3}));
      EXPECT_EQ(batch.document_bounds[0], (std::vector<int32_t>{0, 6}));
      constexpr int64_t kNo = kIgnoredLabel;
      if (all_count) {
        EXPECT_EQ(batch.labels, (std::vector<int64_t>{'b', '>', 'c', 'd', 257, kNo, '>', 'f', 257, kNo}));
      } else {
        EXPECT_EQ(batch.labels, (std::vector<int64_t>{kNo, kNo, 'c', 'd', 257, kNo, kNo, 'f', 257, kNo}));
      }
    }
    EXPECT_EQ(counted, all_count ? 14 : 9);
  }
}

TEST(Conversations, LongOnesAreCutOrLeftOutAndCounted) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl", chat_record("ab", "cd") + chat_record("a", "long one here") +
                                  chat_record("all of it is the user's", "x") + chat_record("e", "f"));
  ChunkOptions options = conversation_chunks(10);
  for (const bool drops : {false, true}) {
    options.drops_long = drops;
    const auto stream = open_chat(chat_dataset(path), options);
    std::string all;
    for (Chunk chunk; stream->next(chunk);) all += shown_chunk(chunk) + "\n";
    EXPECT_EQ(all, drops ? "ab>cd|e>f|_\n   ^^^  ^^ \n"
                         : "ab>cd|_____\n   ^^^     \na>long one \n  ^^^^^^^^^\ne>f|_______\n  ^^       \n");
    EXPECT_EQ(stream->counters().long_conversations, 2);
    const std::vector<std::string> notices = stream->take_notices();
    ASSERT_EQ(notices.size(), 2u);  // and that the data have run out
    EXPECT_EQ(notices[0], path +
                              ":2: this conversation has 16 tokens, but a sequence of training.seq_len holds 11; "
                              "such conversations are " +
                              (drops ? "left out" : "cut") + " (data.long_conversations) and counted");
  }
}

TEST(Conversations, RecordsAreMessagesOrPromptAndCompletion) {
  const TemporaryFolder folder;
  json messages = json::parse(
      R"([{"role": "user", "tool_calls": null, "content": [{"type": "text", "text": "a"}, {"text": "\u00e9"}]},
                                  {"role": "assistant", "content": "c"}])");
  std::string line = json{{"messages", messages}, {"more", 1}, {"tools", json::array()}}.dump();
  line.insert(line.find("\"c\"") + 2, "\\ud83d");  // half a surrogate pair
  const std::string path = folder.write("a.jsonl", line + "\n" + chat_record("x", "y"));
  const auto stream = open_chat(chat_dataset(path), conversation_chunks(14));
  Chunk chunk;
  ASSERT_TRUE(stream->next(chunk));
  EXPECT_EQ(byte_tokenizer()->decode(std::span(chunk.tokens).first(12)), "a\u00e9>c\uFFFD<|end_of_text|>x>y");
  EXPECT_EQ(stream->counters().invalid_utf8, 1);
}

TEST(Conversations, BadRecordsAreNamedOrSkippedAndCounted) {
  const TemporaryFolder folder;
  const std::string image = R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{\"messages\": [", "this line is not JSON from column 15 on"},
      {R"({"prompt": "a", "completion": "b"})" + std::string(1, '\0') + R"({"prompt": "c", "completion": "d"})",
       "this line is not JSON from column 35 on, where a NUL byte is"},
      {"[1]", "this line is a JSON array, not an object"},
      {R"({"prompt": "a", "completion": 1})", "the field \"completion\" of this record is not text"},
      {R"({"prompt": "a"})", "this record has none of \"messages\", \"conversations\""},
      {R"({"messages": {"role": "user"}})", "the field \"messages\" of this record is not a list of messages"},
      {R"({"messages": []})", "this conversation has no messages"},
      {R"({"messages": [{"content": "a"}]})", "message 1 has no \"role\""},
      {R"({"messages": [{"role": "user"}]})", "message 1 has no \"content\""},
      {image, "the \"content\" of message 1 is not text alone: it has a part of type \"image\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "text": "b"}]}]})",
       "the \"content\" of message 1 is not text alone: it has a part of type \"image\""},
      {R"({"messages": [{"role": "user", "content": [{"type": 1, "text": "a"}]}]})",
       "the \"content\" of message 1 is not text alone: it has a part of type 1"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "the \"content\" of message 1 is not text"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{}]}]})",
       "this record has \"tool_calls\" of message 2, which is not followed here"},
      {R"({"prompt": "a", "completion": "b", "tools": [{}]})", "this record has \"tools\", which is not followed here"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "this conversation has no turn of the assistant"},
      {R"({"messages": [{"role": "gpt", "content": "a"}]})",
       "message 1 has the role \"gpt\"; roles are system, user and assistant"}};
  for (const auto& [line, problem] : cases) {
    const std::string path = folder.write("a.jsonl", chat_record("a", "b") + line + "\n");
    const auto stream = open_chat(chat_dataset(path), conversation_chunks(10));
    Chunk chunk;
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { stream->next(chunk); }),
                        path + ":2: " + problem);
    DatasetOptions skipping = chat_dataset(path);
    skipping.bad_record = BadRecord::skip;
    const auto rest = open_chat(skipping, conversation_chunks(10));
    ASSERT_TRUE(rest->next(chunk)) << line;
    EXPECT_EQ(shown_chunk(chunk), "a>b|_______\n  ^^       ");
    EXPECT_EQ(rest->counters().bad_records, 1);
  }
  const auto refusal = [&](const std::string& name, const std::string& text, const ChunkOptions& chunks) {
    const std::string path = folder.write(name, text);
    return message_of(ExitCode::bad_data, [&] {
      const auto stream = open_chat(chat_dataset(path), chunks);
      for (Chunk chunk; stream->next(chunk);) continue;
    });
  };
  EXPECT_PRED_FORMAT2(contains, refusal("a.txt", "text", conversation_chunks(10)),
                      "Give .jsonl or .parquet files of conversations");
  EXPECT_PRED_FORMAT2(contains, refusal("a.jsonl", "\n", conversation_chunks(10)), "there is no document in");
  EXPECT_PRED_FORMAT2(contains, refusal("a.jsonl", chat_record("a longer prompt", "b"), conversation_chunks(10)),
                      "fits into training.seq_len = 10. Raise it.");
  ChunkOptions many = conversation_chunks(10, /*infinite=*/true);
  many.chunks_needed = 3;
  EXPECT_PRED_FORMAT2(contains, refusal("a.jsonl", chat_record("ab", "cd") + chat_record("ef", "gh"), many),
                      "fill 2 sequences, less than one global batch of 3. Give more of them");
}

class ConversationsResume : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Orders, ConversationsResume, testing::Values("plain", "packed", "shuffled", "mixture"));

TEST_P(ConversationsResume, AtEveryPointGivesTheUnbrokenRunsChunks) {
  const TemporaryFolder folder;
  std::string lines;
  const std::vector<std::string> texts = test::random_texts(60, 30);
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    lines += chat_record(texts[i], texts[i + 1]);
    if (i % 14 == 0) lines += "{\"prompt\": \"bad\"}\n\n";
  }
  const bool packed = GetParam() == "packed";
  DatasetOptions options =
      chat_dataset(packed ? folder.write("a.jsonl.zst", test::zstd(lines)) : folder.write("a.jsonl", lines));
  options.bad_record = BadRecord::skip;
  if (GetParam() == "shuffled") options.shuffle_seed = 5;
  const std::string text = folder.write("b.txt", test::stories()[0]);
  const auto make = [&]() -> std::unique_ptr<ChunkSource> {
    auto chat = open_chat(options, conversation_chunks(40, /*infinite=*/true));
    if (GetParam() != "mixture") return chat;
    std::vector<std::unique_ptr<ChunkSource>> streams;
    streams.push_back(std::move(chat));
    streams.push_back(std::make_unique<ChunkStream>(open_dataset({.path = text}), byte_tokenizer(),
                                                    ChunkOptions{.sequence_length = 40}));
    return std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{2, 1});
  };
  const auto whole = make();
  std::vector<Chunk> chunks;
  std::vector<StreamState> states;
  std::vector<DataCounters> counters;
  while (whole->counters().re_loops < 3) {
    states.push_back(whole->state());
    counters.push_back(whole->counters());
    ASSERT_TRUE(whole->next(chunks.emplace_back()));
    const Chunk& chunk = chunks.back();
    ASSERT_EQ(chunk.tokens.size(), 41u);
    if (chunk.counts.empty()) continue;
    EXPECT_GT(std::count(chunk.counts.begin() + 1, chunk.counts.end(), 1), 0) << "a sequence without a label";
  }
  counters.push_back(whole->counters());
  EXPECT_GT(whole->counters().long_conversations, 0);
  EXPECT_GT(whole->counters().bad_records, 0);
  for (size_t from = 0; from < states.size(); ++from) {
    const auto resumed = make();
    resumed->restore(stream_state_from_json(json::parse(to_json(states[from]).dump())));
    EXPECT_EQ(resumed->state(), states[from]);
    for (size_t i = from; i < std::min(from + 30, chunks.size()); ++i) {
      Chunk chunk;
      ASSERT_TRUE(resumed->next(chunk));
      ASSERT_EQ(chunk.tokens, chunks[i].tokens) << "chunk " << i << " of a stream taken up at " << from;
      EXPECT_EQ(chunk.counts, chunks[i].counts);
      EXPECT_EQ(chunk.document_starts, chunks[i].document_starts);
      DataCounters sum = counters[from];
      sum += resumed->counters();
      EXPECT_EQ(test::so_far(sum), test::so_far(counters[i + 1])) << "after chunk " << i << ", resumed at " << from;
    }
  }
}

}  // namespace
}  // namespace titan
