// Ids that other programs wrote give the batches of the same documents in this program's own file, in every order, and
// a stream of them that is resumed anywhere gives the batches of the undisturbed one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "src/corpus/token_source.h"
#include "support/files.h"
#include "support/foreign_ids.h"
#include "support/random_sequence.h"
#include "titan/corpus/tokenize.h"
#include "titan/corpus/vocabulary.h"
#include "titan/stream/batch_stream.h"
#include "titan/stream/chunk_stream.h"

namespace titan {
namespace {

using test::IdDocuments;
using test::message_of;

constexpr int32_t kEndOfText = 50256;
constexpr int64_t kIds = 50257, kSequence = 32;
constexpr int kBatchesOfIds = 60;

/// 80 documents, each with the mark that files without an index have at its beginning or end.
IdDocuments marked_documents(bool at_the_end) {
  PhiloxSequence random(5);
  IdDocuments documents(80);
  for (auto& document : documents) {
    for (uint32_t i = random.below(60); i > 0; --i) document.push_back(random.below(50000));
    document.insert(at_the_end ? document.end() : document.begin(), kEndOfText);
  }
  return documents;
}

/// By format and order.
class ForeignIdsStream : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  ForeignIdsStream() {
    const std::string format = std::get<0>(GetParam());
    const IdDocuments documents = marked_documents(/*at_the_end=*/format == "nanogpt");
    for (const char* name : {"a", "b"}) write(format, name, documents);
    std::string lines;
    for (const auto& document : documents) lines += nlohmann::json{{"ids", document}}.dump() + "\n";
    Tokenization own;
    own.dataset = {.dataset = "text", .path = folder_.write("ids.jsonl", lines), .text_field = "ids"};
    own.ids = GivenIds{kIds, Tokenizer::kNoId, Tokenizer::kNoId, ""};
    own.output = folder_ / "own.bin";
    std::ostringstream ignored;
    tokenize_corpus(own, ignored);
  }

  void write(const std::string& format, const std::string& name, const IdDocuments& documents) const {
    const std::string narrow = test::id_bytes<uint16_t>(documents), bin = name + ".bin";
    if (format == "megatron") {
      folder_.write(bin, test::id_bytes<int32_t>(documents));
      folder_.write(name + ".idx", test::index_of(documents, 4, 4).bytes());
    } else if (format == "datatrove") {
      folder_.write(name + ".ds", narrow);
      folder_.write(name + ".ds.index", test::datatrove_index(documents));
    } else if (format == "llm_c") {
      folder_.write(bin, test::llm_c_header(20240520, 1, static_cast<int32_t>(narrow.size() / 2)) + narrow);
    } else {
      folder_.write(bin, narrow);
    }
  }

  std::string foreign_path(const std::string& name) const {
    return (folder_ / (name + (std::get<0>(GetParam()) == "datatrove" ? ".ds" : ".bin"))).string();
  }

  std::unique_ptr<ChunkSource> chunks(const std::string& path, bool foreign,
                                      const std::shared_ptr<const Tokenizer>& tokenizer, const BatchPlan& plan) const {
    DatasetOptions dataset{.dataset = foreign && std::get<0>(GetParam()) == "nanogpt" ? "nanogpt" : "text",
                           .path = path};
    if (std::get<1>(GetParam()) == "shuffled") dataset.shuffle_seed = 7;
    dataset.tokenizer = tokenizer.get();
    return std::make_unique<ChunkStream>(open_dataset(dataset), tokenizer, chunk_options(plan, {}));
  }

  /// Of the foreign files or of the program's own, on one of `ranks` ranks.
  std::unique_ptr<BatchStream> open(bool foreign, int64_t ranks = 1, int64_t rank = 0) const {
    const BatchPlan plan{kSequence, 2 / ranks, 1, ranks, rank};
    const std::string path = foreign ? foreign_path("a") : (folder_ / "own.bin").string();
    std::shared_ptr<const Tokenizer> tokenizer = open_vocabulary(folder_ / "own.bin");
    if (foreign) tokenizer = std::make_shared<RecordedVocabulary>(kIds, Tokenizer::kNoId, kEndOfText, "");
    if (std::get<1>(GetParam()) != "mixture") {
      return std::make_unique<BatchStream>(chunks(path, foreign, tokenizer, plan), plan, BatchOptions());
    }
    std::vector<std::unique_ptr<ChunkSource>> streams;
    streams.push_back(chunks(path, foreign, tokenizer, plan));
    streams.push_back(chunks(foreign ? foreign_path("b") : path, foreign, tokenizer, plan));
    return std::make_unique<BatchStream>(std::make_unique<ChunkMixture>(std::move(streams), std::vector<int64_t>{3, 1}),
                                         plan, BatchOptions());
  }

  test::TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Formats, ForeignIdsStream,
                         testing::Combine(testing::Values("megatron", "datatrove", "llm_c", "nanogpt"),
                                          testing::Values("sequential", "shuffled", "mixture")),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

TEST_P(ForeignIdsStream, BatchesAreThoseOfTheSameDocumentsInThisProgramsFile) {
  const auto foreign = open(true), own = open(false);
  for (int i = 0; i < 3 * kBatchesOfIds; ++i) {  // several passes
    const std::optional<StepBatch> one = foreign->next(), other = own->next();
    ASSERT_TRUE(one && other);
    ASSERT_EQ(one->microbatches[0].tokens, other->microbatches[0].tokens) << "batch " << i;
    ASSERT_EQ(one->microbatches[0].labels, other->microbatches[0].labels) << "batch " << i;
    ASSERT_EQ(one->microbatches[0].document_bounds, other->microbatches[0].document_bounds) << "batch " << i;
  }
}

TEST_P(ForeignIdsStream, AResumeIsExactOnOneRankAndOnTwo) {
  const auto whole = open(true);
  std::vector<std::vector<int64_t>> tokens;
  std::vector<std::string> states;  // as a checkpoint holds them
  for (int i = 0; i < kBatchesOfIds; ++i) {
    states.push_back(to_json(whole->state()).dump());
    tokens.push_back(whole->next()->microbatches[0].tokens);
  }
  for (size_t from = 1; from + 4 < tokens.size(); from += 7) {
    for (const int64_t ranks : {1, 2}) {
      std::vector<std::unique_ptr<BatchStream>> streams;
      for (int64_t rank = 0; rank < ranks; ++rank) streams.push_back(open(true, ranks, rank));
      for (const auto& stream : streams) stream->restore(stream_state_from_json(nlohmann::json::parse(states[from])));
      for (size_t i = from; i < from + 4; ++i) {
        std::vector<int64_t> joined;
        for (const auto& stream : streams) {
          const std::vector<int64_t> part = stream->next()->microbatches[0].tokens;
          joined.insert(joined.end(), part.begin(), part.end());
        }
        ASSERT_EQ(joined, tokens[i]) << "batch " << i << " of a stream resumed at " << from << " on " << ranks;
      }
    }
  }
}

TEST_P(ForeignIdsStream, AFileThatChangedIsRefusedByName) {
  StreamState state;
  {
    const auto whole = open(true);  // closed before its files are written to
    for (int i = 0; i < 5; ++i) whole->next();
    state = whole->state();
  }
  open(true)->restore(state);
  const std::string format = std::get<0>(GetParam());
  IdDocuments documents = marked_documents(/*at_the_end=*/format == "nanogpt");
  documents.insert(documents.end(), {{kEndOfText}, {kEndOfText}});
  write(format, "a", documents);
  const std::string message = message_of(ExitCode::bad_data, [&] { open(true)->restore(state); });
  const std::string name = std::filesystem::path(foreign_path("a")).filename().string();
  EXPECT_PRED_FORMAT2(test::contains, message, name + (format == "llm_c" ? " changed, first between" : " grew from "));
  if (format != "megatron" && format != "datatrove") return;
  // The same ids with another boundary: only the index differs.
  documents = marked_documents(false);
  documents[3].push_back(documents[4].front());
  documents[4].erase(documents[4].begin());
  write(format, "a", documents);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open(true)->restore(state); }),
                      (format == "megatron" ? "a.idx" : "a.ds.index") + std::string(" changed, first between"));
}

}  // namespace
}  // namespace titan
