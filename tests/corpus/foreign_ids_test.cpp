// Ids that other programs wrote, read where they are: the documents that their indexes or marks describe, and every
// file that does not fit its description refused in one sentence.
#include "src/corpus/foreign_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "src/corpus/file_source.h"
#include "src/corpus/marked_ids.h"
#include "src/corpus/token_source.h"
#include "support/files.h"
#include "support/foreign_ids.h"
#include "titan/base/filesystem.h"
#include "titan/corpus/inspect.h"
#include "titan/corpus/tokenize.h"
#include "titan/corpus/vocabulary.h"

namespace titan {
namespace {

using test::contains;
using test::IdDocuments;
using test::message_of;
using test::TemporaryFolder;
namespace fs = std::filesystem;

const IdDocuments kDocuments{{1, 5, 100, 2}, {1, 2}, {}, {1, 7, 7, 7, 9, 2}};

std::vector<int64_t> wide(const Document& document) {
  std::vector<int32_t> ids;
  document.tokens->append_to(ids);
  return {ids.begin(), ids.end()};
}

IdDocuments all_of(DocumentSource& source) {
  source.seek({});
  IdDocuments all;
  for (Document document; source.next(document);) all.push_back(wide(document));
  return all;
}

/// Opens what a user names.
std::unique_ptr<DocumentSource> open_ids(const std::string& path, const Tokenizer* tokenizer = nullptr) {
  return open_dataset({.dataset = "text", .path = path, .tokenizer = tokenizer});
}

std::string refusal(const std::string& path, const Tokenizer* tokenizer = nullptr) {
  return message_of(ExitCode::bad_data, [&] {
    const auto source = open_ids(path, tokenizer);
    if (tokenizer) source->check_tokenizer(*tokenizer);
    all_of(*source);
  });
}

/// The documents are the same one by one in any order, and from the position of each on.
void expect_random_access(DocumentSource& source) {
  const IdDocuments all = all_of(source);
  ASSERT_EQ(source.count_documents(), std::ssize(all));
  Document document;
  for (auto i = std::ssize(all) - 1; i >= 0; --i) {
    ASSERT_TRUE(source.read(i, document));
    EXPECT_EQ(wide(document), all[static_cast<size_t>(i)]);
  }
  source.seek({});
  std::vector<SourcePosition> starts;
  while (source.next(document)) starts.push_back(document.start);
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_EQ(starts[i].document, static_cast<int64_t>(i));
    source.seek(starts[i]);
    ASSERT_TRUE(source.next(document));
    EXPECT_EQ(wide(document), all[i]);
  }
}

void write_megatron(const TemporaryFolder& folder, const std::string& prefix, const IdDocuments& documents) {
  folder.write(prefix + ".bin", test::id_bytes<int32_t>(documents));
  folder.write(prefix + ".idx", test::index_of(documents, 4, 4).bytes());
}

template <typename Id>
void expect_type(uint8_t code, const std::string& name) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("a.bin", test::id_bytes<Id>(kDocuments));
  folder.write("a.idx", test::index_of(kDocuments, code, sizeof(Id)).bytes());
  const auto source = open_ids(bin);
  EXPECT_EQ(all_of(*source), kDocuments) << name;
  EXPECT_EQ(source->format(), "Megatron ids, " + name + ", 4 documents");
}

TEST(MegatronFiles, IdsOfEveryIntegerTypeAreRead) {
  expect_type<uint8_t>(1, "uint8");
  expect_type<int8_t>(2, "int8");
  expect_type<int16_t>(3, "int16");
  expect_type<int32_t>(4, "int32");
  expect_type<int64_t>(5, "int64");
  expect_type<uint16_t>(8, "uint16");
}

TEST(MegatronFiles, ADocumentIsAllItsSequences) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3, 4, 5, 6, 7}}));
  const test::MegatronIndex index = test::megatron_index({{2, 1}, {}, {0}, {4}}, 4, 4);
  folder.write("a.idx", index.bytes());
  const auto source = open_ids(bin);
  EXPECT_EQ(all_of(*source), (IdDocuments{{1, 2, 3}, {}, {}, {4, 5, 6, 7}}));
  expect_random_access(*source);
  SequenceIndex* const sequences = source->sequence_index();
  ASSERT_NE(sequences, nullptr);
  EXPECT_EQ(sequences->lengths(), (std::vector<int32_t>{2, 1, 0, 4}));
  EXPECT_EQ(sequences->sequence(1).at(0), 3);
  EXPECT_EQ(sequences->sequence(3).size, 4u);
}

TEST(MegatronFiles, WithoutBoundariesOfDocumentsEachSequenceIsOne) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3}}));
  test::MegatronIndex index = test::megatron_index({{2, 1}}, 4, 4);
  index.boundaries = {0};
  folder.write("a.idx", index.bytes());
  EXPECT_EQ(all_of(*open_ids(bin)), (IdDocuments{{1, 2}, {3}}));
}

TEST(MegatronFiles, ModesOfTextAreAcceptedAndOthersRefused) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3}}));
  test::MegatronIndex index = test::megatron_index({{2}, {1}}, 4, 4);
  index.modes = std::string(2, '\0');
  folder.write("a.idx", index.bytes());
  EXPECT_EQ(all_of(*open_ids(bin)), (IdDocuments{{1, 2}, {3}}));
  index.modes[1] = 1;
  folder.write("a.idx", index.bytes());
  EXPECT_PRED_FORMAT2(contains, refusal(bin), "it is a multimodal corpus: its sequence 1 has mode 1");
}

TEST(MegatronFiles, TheirUsualNameHasNoExtension) {
  const TemporaryFolder folder;
  write_megatron(folder, "corpus_text_document", kDocuments);
  const auto source = open_ids((folder / "corpus_text_document").string());
  EXPECT_EQ(all_of(*source), kDocuments);
  EXPECT_PRED_FORMAT2(contains, source->description(), "corpus_text_document.bin (4 documents, 12 tokens)");
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "corpus_text_document.idx").string()), "describes a file of ids");
  fs::create_directory(folder / "corpus_text_document");
  EXPECT_EQ(find_megatron_file((folder / "corpus_text_document").string()), std::nullopt);
}

TEST(MegatronFiles, AFolderOfThemIsReadInTheOrderOfItsNamesAndNothingIsLeftOut) {
  const TemporaryFolder folder;
  write_megatron(folder, "all/b", {{3}});
  write_megatron(folder, "all/a", {{1}, {2}});
  folder.write("all/c.v1.bin", test::id_bytes<uint16_t>({{4}}));
  folder.write("all/c.v1.idx", test::megatron_index({{1}}, 8, 2).bytes());
  EXPECT_EQ(find_text_files((folder / "all").string()).left_out, 0);
  const auto source = open_ids((folder / "all").string());
  EXPECT_EQ(all_of(*source), (IdDocuments{{1}, {2}, {3}, {4}}));
  EXPECT_EQ(source->format(), "Megatron ids, int32, uint16, 4 documents");
  EXPECT_EQ(source->sequence_index(), nullptr);
  EXPECT_EQ(source->file_sizes().size(), 6u);
}

class BadMegatronFile : public testing::Test {
 protected:
  /// The refusal of the file with this index.
  std::string refused(const test::MegatronIndex& index) {
    folder_.write("a.idx", index.bytes());
    const std::string message = refusal(bin_);
    EXPECT_PRED_FORMAT2(contains, message, "a.bin: ");
    return message;
  }

  TemporaryFolder folder_;
  std::string bin_ = folder_.write("a.bin", test::id_bytes<int32_t>(kDocuments));
  test::MegatronIndex right_ = test::index_of(kDocuments, 4, 4);
};

TEST_F(BadMegatronFile, NumbersAreNoIds) {
  test::MegatronIndex index = right_;
  index.type = 7;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its ids are float32 numbers");
  index.type = 6;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its ids are float64 numbers");
  index.type = 9;
  EXPECT_PRED_FORMAT2(contains, refused(index), "the type of its ids is 9, and Megatron-LM's are 1 to 8");
  index.type = 0;
  EXPECT_PRED_FORMAT2(contains, refused(index), "the type of its ids is 0");
}

TEST_F(BadMegatronFile, OtherVersionsAndFormatsAreNamed) {
  test::MegatronIndex index = right_;
  index.version = 2;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its index a.idx has version 2, and version 1 is read");
  index.magic = "NNIDIDX\0\0";
  EXPECT_PRED_FORMAT2(contains, refused(index), "a.idx is no index of Megatron-LM, which begins with MMIDIDX");
  index.magic = std::string("TNTIDX\0\0\1", 9);
  EXPECT_PRED_FORMAT2(contains, refused(index), "a former format of Megatron-LM (TNTIDX)");
}

TEST_F(BadMegatronFile, AnIndexThatIsCutOffIsFoundWhereverItIsCut) {
  const std::string whole = right_.bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    folder_.write("a.idx", whole.substr(0, length));
    EXPECT_PRED_FORMAT2(contains, refusal(bin_), "a.idx");
  }
  folder_.write("a.idx", whole);
  EXPECT_EQ(all_of(*open_ids(bin_)), kDocuments);
}

TEST_F(BadMegatronFile, CountsThatOverflowAreFoundBeforeAnyIsUsed) {
  for (const uint64_t more : {uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 62, ~uint64_t{0} - 4}) {
    test::MegatronIndex index = right_;
    index.more_sequences = more;
    EXPECT_PRED_FORMAT2(contains, refused(index), "is cut off or damaged");
  }
}

TEST_F(BadMegatronFile, AFileOfAnotherCorpusIsFoundByItsSize) {
  folder_.write("a.idx", right_.bytes());
  folder_.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3}}));
  EXPECT_PRED_FORMAT2(contains, refusal(bin_), "it has 12 bytes, and its index a.idx describes more, at least 16");
  folder_.write("a.bin", test::id_bytes<int32_t>(kDocuments) + std::string(4, '\0'));
  EXPECT_PRED_FORMAT2(contains, refusal(bin_), "it has 52 bytes, and its index a.idx describes 48");
  folder_.write("a.bin", test::id_bytes<int32_t>(kDocuments) + "x");
  EXPECT_PRED_FORMAT2(contains, refusal(bin_), "it has 49 bytes, and its index a.idx describes 48");
}

TEST_F(BadMegatronFile, SequencesAndDocumentsThatDoNotFollowEachOtherAreNamed) {
  test::MegatronIndex index = right_;
  index.lengths[1] = -1;
  EXPECT_PRED_FORMAT2(contains, refused(index), "sequence 1 has the length -1");
  index = right_;
  index.places[1] += 4;
  EXPECT_PRED_FORMAT2(contains, refused(index), "sequence 1 begins at byte 20, and the one before it ends at byte 16");
  index = right_;
  index.boundaries[2] = 0;
  EXPECT_PRED_FORMAT2(contains, refused(index), "document 1 ends before it begins, at sequence 0");
  index = right_;
  index.boundaries[0] = 1;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its first document does not begin with the first sequence");
  index = right_;
  index.boundaries.back() = 7;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its last document ends at sequence 7 of 4");
  index.boundaries.pop_back();
  EXPECT_PRED_FORMAT2(contains, refused(index), "its last document ends at sequence 3 of 4");
}

TEST_F(BadMegatronFile, WhatIsWrittenToOrShrinksWhileItIsReadIsNamed) {
  folder_.write("a.idx", right_.bytes());
  for (const char* name : {"a.bin", "a.idx"}) {
    const std::string bytes = read_file(folder_ / name);
    fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::hours(1));
    const auto source = open_ids(bin_);
    Document document;
    ASSERT_TRUE(source->read(0, document));
    fs::resize_file(folder_ / name, 8);
    const std::string message = message_of(ExitCode::bad_data, [&] {
      while (true) source->read(3, document);  // the check is not made anew for each document
    });
    EXPECT_PRED_FORMAT2(contains, message, "while it was read");
    folder_.write(name, bytes);
  }
}

TEST(ForeignVocabulary, AnIdThatTheTokenizerDoesNotHaveIsFoundWhenTheCorpusIsOpened) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", kDocuments);
  const std::string bin = (folder / "a.bin").string();
  const RecordedVocabulary fits(101, 1, 2, ""), small(100, 1, 2, "");
  open_ids(bin, &fits)->check_tokenizer(fits);
  const std::string message = message_of(ExitCode::bad_data, [&] { open_ids(bin, &small)->check_tokenizer(small); });
  EXPECT_PRED_FORMAT2(contains, message, "a.bin holds the id 100 (its id 2, counted from 0)");
  EXPECT_PRED_FORMAT2(contains, message, "this run's tokenizer has 100 ids");
  EXPECT_PRED_FORMAT2(contains, message, "model.tokenizer_path");
  write_megatron(folder, "a", {{1, 2}, {3, -5, 200}});
  EXPECT_PRED_FORMAT2(contains, refusal(bin, &fits),
                      "holds the id -5 (its id 3, counted from 0), and no tokenizer has");
  EXPECT_PRED_FORMAT2(contains, refusal(bin), "its id 3 (counted from 0) is -5, and no tokenizer has such an id");
}

TEST(ForeignVocabulary, AnIdBeyond32BitsIsNotWrappedAround) {
  const TemporaryFolder folder;
  const IdDocuments documents{{1, (int64_t{1} << 32) + 5}};
  const std::string bin = folder.write("a.bin", test::id_bytes<int64_t>(documents));
  folder.write("a.idx", test::index_of(documents, 5, 8).bytes());
  EXPECT_PRED_FORMAT2(contains, refusal(bin), "its id 1 (counted from 0) is 4294967301, and no tokenizer has");
  folder.write("b.ds", test::id_bytes<uint32_t>({{1, int64_t{4'000'000'000}}}));
  folder.write("b.ds.index", test::datatrove_index({{1, 2}}));
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "b.ds").string()), "is 4000000000, and no tokenizer has");
}

TEST(ForeignVocabulary, AnIdOutsideTheSampleIsFoundWhenItsDocumentIsRead) {
  const TemporaryFolder folder;
  constexpr int64_t kDocument = int64_t{1} << 20, kCount = 20, kBlock = kSampleBytes / 64 / 2;
  std::vector<uint16_t> ids(static_cast<size_t>(kDocument * kCount), 7);
  ids[static_cast<size_t>(kBlock + 1000)] = 700;  // after the first block of the sample
  const std::string bin = folder.write("a.bin", test::bytes_of(ids));
  const std::vector<std::vector<int32_t>> lengths(kCount, {static_cast<int32_t>(kDocument)});
  folder.write("a.idx", test::megatron_index(lengths, 8, 2).bytes());
  const RecordedVocabulary tokenizer(300, 1, 2, "");
  const auto source = open_ids(bin, &tokenizer);
  source->check_tokenizer(tokenizer);
  Document document;
  source->read(1, document);
  EXPECT_EQ(wide(document).size(), static_cast<size_t>(kDocument));
  source->read(0, document);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { wide(document); }),
                      "its id 132,072 (counted from 0) is 700, and this run's tokenizer has 300 ids");
  ids.back() = 300;  // the last block is looked at
  folder.write("a.bin", test::bytes_of(ids));
  const auto changed = open_ids(bin, &tokenizer);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { changed->check_tokenizer(tokenizer); }),
                      "holds the id 300 (its id 20,971,519");
}

TEST(ForeignVocabulary, AFileThatDoesNotSayItsVocabularyStandsForNoTokenizer) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", kDocuments);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { open_vocabulary(folder / "a.bin"); }),
                      "it does not say how many ids its tokenizer has");
}

TEST(DatatroveFiles, IdsOfTwoAndFourBytesAreReadAsTheIndexSays) {
  const TemporaryFolder folder;
  const std::string narrow = folder.write("two/a.ds", test::id_bytes<uint16_t>(kDocuments));
  const std::string full = folder.write("four/a.ds", test::id_bytes<uint32_t>(kDocuments));
  for (const char* name : {"two/a.ds.index", "four/a.ds.index"}) {
    folder.write(name, test::datatrove_index(kDocuments));
  }
  folder.write("four/a.ds.metadata", "meta-llama/Llama-3.2-1B|4\n12\n12 T");
  EXPECT_EQ(open_ids(narrow)->format(), "datatrove ids, uint16, 4 documents");
  const auto source = open_ids((folder / "four").string());
  EXPECT_EQ(source->format(), "datatrove ids, uint32, 4 documents");
  EXPECT_EQ(dynamic_cast<IdSource&>(*source).facts().vocabulary, "meta-llama/Llama-3.2-1B");
  for (const std::string& path : {narrow, full}) {
    const auto opened = open_ids(path);
    EXPECT_EQ(all_of(*opened), kDocuments);
    expect_random_access(*opened);
  }
  EXPECT_EQ(find_text_files((folder / "four").string()).left_out, 0);
  const RecordedVocabulary small(100, 1, 2, "");
  EXPECT_PRED_FORMAT2(contains, refusal(full, &small), "the tokenizer that made the file (meta-llama/Llama-3.2-1B)");
}

TEST(DatatroveFiles, AMaskOfLabelsIsNotReadAndThatIsSaid) {
  const TemporaryFolder folder;
  const std::string ds = folder.write("a.ds", test::id_bytes<uint16_t>(kDocuments));
  folder.write("a.ds.index", test::datatrove_index(kDocuments));
  EXPECT_TRUE(open_ids(ds)->take_notices().empty());
  folder.write("a.ds.loss", std::string(12, '\1'));
  const std::vector<std::string> notices = open_ids(ds)->take_notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_PRED_FORMAT2(contains, notices[0], "a.ds.loss holds a mask of labels, which is not read");
}

TEST(DatatroveFiles, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const std::string ds = folder.write("a.ds", test::id_bytes<uint16_t>(kDocuments));
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "it has no index beside it (a.ds.index)");
  const std::string index = test::datatrove_index(kDocuments);
  folder.write("a.ds.index", index.substr(0, 13));
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "its index a.ds.index has 13 bytes, and each document takes 8");
  folder.write("a.ds.index", index.substr(0, 8));  // of two documents it would be right for ids of four bytes
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "it has 24 bytes, and its index a.ds.index ends at id 4");
  folder.write("a.ds.index", test::bytes_of(std::vector<uint64_t>{4, 3, 12}));
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "document 1 ends before it begins");
  folder.write("a.ds.index", test::bytes_of(std::vector<uint64_t>{~uint64_t{0}, 12}));
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "document 0 ends before it begins");
  folder.write("a.ds.index", index);
  folder.write("a.ds.metadata", "gpt2|4\n12\n12 T");
  EXPECT_PRED_FORMAT2(contains, refusal(ds), "a.ds.metadata says that an id takes 4 bytes");
  folder.write("a.ds.metadata", "gpt2\n12\n12 T");  // of former versions
  EXPECT_EQ(all_of(*open_ids(ds)), kDocuments);
  EXPECT_PRED_FORMAT2(contains, refusal(folder.write("b.ds.gz", "")), "b.ds.gz is packed");
}

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

TEST(ForeignIds, AFolderWhoseNamesTellSplitsIsNotReadAsAWhole) {
  const TemporaryFolder folder;
  const std::string bytes = test::llm_c_header(20240520, 1, 2) + test::id_bytes<uint16_t>({{kEnd, 1}});
  folder.write("all/fineweb_train_000001.bin", bytes);
  folder.write("all/fineweb_val_000000.bin", bytes);
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "all").string()), "name the files for training with a glob");
  EXPECT_EQ(all_of(*open_ids((folder / "all/*train*.bin").string())), (IdDocuments{{kEnd, 1}}));
  write_megatron(folder, "shards/train-00000-of-00002", {{1}});
  write_megatron(folder, "shards/train-00001-of-00002", {{2}});
  EXPECT_EQ(all_of(*open_ids((folder / "shards").string())), (IdDocuments{{1}, {2}}));
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

TEST(ForeignIds, FilesOfTwoProgramsAreNoCorpus) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", {{1}});
  folder.write("b.ds", test::id_bytes<uint16_t>({{1}}));
  folder.write("b.ds.index", test::datatrove_index({{1}}));
  EXPECT_PRED_FORMAT2(contains, refusal(folder.string()), "a.bin holds Megatron ids, and b.ds datatrove ids");
}

TEST(ForeignIds, ASavedPositionThatIsNotInTheFilesIsRefused) {
  const TemporaryFolder folder;
  const auto source =
      open_ids(folder.write("a.bin", test::llm_c_header(20240520, 1, 2) + test::id_bytes<uint16_t>({{1, 2}})));
  for (const SourcePosition& start :
       {SourcePosition{.file = 2}, {.file = -1}, {.byte = 6}, {.byte = 1}, {.byte = -2}}) {
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { source->seek(start); }), "is not in it");
  }
}

TEST(ForeignIds, TheCommandsSayWhatTheFilesAre) {
  const TemporaryFolder folder;
  folder.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3, 4, 5, 6, 700}}));
  folder.write("a.idx", test::megatron_index({{2, 1}, {4}}, 4, 4).bytes());
  Inspection inspection;
  inspection.dataset = {.dataset = "text", .path = (folder / "a").string()};
  const auto shown = [&](void (*show)(const Inspection&, std::ostream&)) {
    std::ostringstream out;
    show(inspection, out);
    return out.str();
  };
  const std::string info = shown(describe_files);
  for (const char* line :
       {"a.bin (2 documents, 7 tokens)\n", "format        Megatron ids, int32, 2 documents\n", "files         2\n",
        "documents     2\n", "sequences     3\n", "tokens        7 of int32\n", "vocabulary    the files do not say\n",
        "largest id    700 of 7 looked at\n", "as written    no id is added to a document or left out\n"}) {
    EXPECT_PRED_FORMAT2(contains, info, line);
  }
  EXPECT_PRED_FORMAT2(contains, shown(describe_corpus), "a document has 4 tokens on average, at most 4\n");
  EXPECT_PRED_FORMAT2(contains, shown(show_documents), "(document 1, 4 tokens)");
}

}  // namespace
}  // namespace titan
