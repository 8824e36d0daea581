// Files of llm.c and nanoGPT, whose documents are found by their marks.
#include <gtest/gtest.h>

#include <algorithm>

#include "corpus/id_files.h"
#include "src/corpus/marked_ids.h"
#include "titan/corpus/vocabulary.h"

namespace titan {
namespace {

constexpr int64_t kEnd = 50256, kBegin = 128000;

TEST(LlmCFiles, DocumentsBeginWithTheirMark) {
  const TemporaryFolder folder;
  const IdDocuments gpt2{{3, 4}, {kEnd, 5, 6}, {kEnd}, {kEnd, 7}}, llama{{kBegin, 100000}, {kBegin, 8}};
  const std::string bin = folder.write("gpt2.bin", test::llm_c_header(20240520, 1, 8) + test::id_bytes<uint16_t>(gpt2));
  const std::string other =
      folder.write("llama.bin", test::llm_c_header(20240801, 7, 4) + test::id_bytes<uint32_t>(llama));
  for (const auto& [path, documents] : {std::pair(bin, gpt2), std::pair(other, llama)}) {
    const auto source = open_ids(path);
    EXPECT_EQ(all_of(*source), documents);
    expect_random_access(*source);
  }
  EXPECT_EQ(open_ids(bin)->format(), "ids of llm.c (GPT-2), uint16, documents begin with 50256");
  EXPECT_EQ(open_ids(other)->format(), "ids of llm.c (Llama 3), uint32, documents begin with 128000");
}

TEST(LlmCFiles, SeveralAreOneCorpusAndMayServeAsTheirTokenizer) {
  const TemporaryFolder folder;
  folder.write("all/a_0.bin", test::llm_c_header(20240520, 1, 3) + test::id_bytes<uint16_t>({{kEnd, 5, 6}}));
  folder.write("all/a_1.bin", test::llm_c_header(20240520, 1, 4) + test::id_bytes<uint16_t>({{8}, {kEnd, 9, 10}}));
  const auto tokenizer = open_vocabulary(folder / "all/a_0.bin");
  EXPECT_EQ(tokenizer->vocabulary_size(), 50257);
  EXPECT_EQ(tokenizer->eos_id(), kEnd);
  const auto source = open_ids((folder / "all").string(), tokenizer.get());
  source->check_tokenizer(*tokenizer);
  EXPECT_EQ(all_of(*source), (IdDocuments{{kEnd, 5, 6}, {8}, {kEnd, 9, 10}}));
  expect_random_access(*source);
  const RecordedVocabulary other(60000, 1, 2, "");
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { source->check_tokenizer(other); }),
                      "whose documents begin with the id 50256, and in this run's tokenizer");
}

TEST(LlmCFiles, HeadersThatDoNotFitAreNamed) {
  const TemporaryFolder folder;
  const std::string ids = test::id_bytes<uint16_t>({{kEnd, 1}});
  const auto refused = [&](const std::string& bytes) { return refusal(folder.write("a.bin", bytes)); };
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240520, 1, 3) + ids), "its header says 3 ids of 2 bytes");
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240520, 1, -2) + ids), "its header says -2 ids");
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240520, 1, 2).substr(0, 500)),
                      "the file has 500 bytes in all");
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240520, 2, 2) + ids),
                      "of version 2, and version 1 is read");
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240522, 1, 2) + ids), "questions of llm.c's evaluations");
  EXPECT_PRED_FORMAT2(contains, refused(test::llm_c_header(20240521, 1, 2) + ids), "it has no index beside it");
  folder.write("all/a.bin", test::llm_c_header(20240520, 1, 2) + ids);
  folder.write("all/b.bin", test::llm_c_header(20240801, 7, 1) + test::id_bytes<uint32_t>({{kBegin}}));
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "all").string()), "Name files of one tokenizer");
  write_megatron(folder, "all/b", {{1}});
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "all").string()), "it does not begin with a header of llm.c");
  write_megatron(folder, "all/0", {{1}});
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "all").string()), "another file of this corpus does not");
}

TEST(NanogptFiles, DocumentsEndWithTheTokenizersEnd) {
  const TemporaryFolder folder;
  const IdDocuments documents{{3, 4, 2}, {2}, {5, 2}, {6}};
  const std::string bin = folder.write("train.bin", test::id_bytes<uint16_t>(documents));
  const RecordedVocabulary tokenizer(100, Tokenizer::kNoId, 2, "");
  const DatasetOptions options{.dataset = "nanogpt", .path = bin, .tokenizer = &tokenizer};
  const auto source = open_dataset(options);
  source->check_tokenizer(tokenizer);
  EXPECT_EQ(all_of(*source), documents);
  expect_random_access(*source);
  EXPECT_EQ(source->format(), "ids of nanoGPT, uint16, documents end with 2");
  DatasetOptions shuffled = options;
  shuffled.shuffle_seed = 3;
  const auto mixed = open_dataset(shuffled);
  Document document;
  IdDocuments found;
  while (mixed->next(document)) found.push_back(wide(document));
  std::sort(found.begin(), found.end());
  IdDocuments sorted = documents;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(found, sorted);
}

TEST(NanogptFiles, ALongDocumentIsCutAndSoIsAFileWithoutAnyEnd) {
  const TemporaryFolder folder;
  const fs::path bin = folder.write("train.bin", test::id_bytes<uint16_t>({{3, 4, 5, 6, 7, 2, 8}}));
  const RecordedVocabulary ends(100, Tokenizer::kNoId, 2, ""), endless(100, Tokenizer::kNoId, Tokenizer::kNoId, "");
  using Maker = MarkedIdSource::Maker;
  MarkedIdSource cut("train.bin", {bin}, Maker::nanogpt, &ends, 4);
  EXPECT_EQ(all_of(cut), (IdDocuments{{3, 4, 5, 6}, {7, 2}, {8}}));
  expect_random_access(cut);
  MarkedIdSource pieces("train.bin", {bin}, Maker::nanogpt, &endless, 3);
  EXPECT_EQ(all_of(pieces), (IdDocuments{{3, 4, 5}, {6, 7, 2}, {8}}));
  expect_random_access(pieces);
  EXPECT_PRED_FORMAT2(contains, pieces.format(), "documents of 3 ids, since the tokenizer has no end-of-text id");
}

TEST(NanogptFiles, AreReadOnlyWhenTheyAreNamedSoAndHaveNothingThatSaysOtherwise) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("train.bin", test::id_bytes<uint16_t>({{3, 2}}));
  const RecordedVocabulary tokenizer(100, Tokenizer::kNoId, 2, ""), far(100000, 1, 99999, "");
  const auto refused = [&](const Tokenizer* with) {
    return message_of(ExitCode::bad_data,
                      [&] { open_dataset({.dataset = "nanogpt", .path = bin, .tokenizer = with}); });
  };
  EXPECT_PRED_FORMAT2(contains, refusal(bin, &tokenizer), "is read with training.dataset = \"nanogpt\"");
  EXPECT_PRED_FORMAT2(contains, refused(nullptr), "do not say where documents end");
  EXPECT_PRED_FORMAT2(contains, refused(&far), "hold ids up to 65535, and the end-of-text id");
  folder.write("train.bin", "xxx");
  EXPECT_PRED_FORMAT2(contains, refused(&tokenizer), "it has 3 bytes, and nanoGPT's files hold two bytes for each id");
  folder.write("train.bin", test::llm_c_header(20240520, 1, 0));
  EXPECT_PRED_FORMAT2(contains, refused(&tokenizer), "it is no file of nanoGPT");
  folder.write("train.bin", test::id_bytes<uint16_t>({{3, 200}}));
  const auto source = open_dataset({.dataset = "nanogpt", .path = bin, .tokenizer = &tokenizer});
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { source->check_tokenizer(tokenizer); }),
                      "holds the id 200");
}

}  // namespace
}  // namespace titan
