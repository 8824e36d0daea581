// Files of Megatron-LM: the documents of their index, and every index that does not fit refused in one sentence.
#include <gtest/gtest.h>

#include <chrono>

#include "corpus/id_files.h"
#include "src/corpus/file_source.h"
#include "src/corpus/foreign_ids.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

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

TEST(MegatronFiles, ADocumentIsAllItsEntries) {
  const TemporaryFolder folder;
  const std::string bin = folder.write("a.bin", test::id_bytes<int32_t>({{1, 2, 3, 4, 5, 6, 7}}));
  const test::MegatronIndex index = test::megatron_index({{2, 1}, {}, {0}, {4}}, 4, 4);
  folder.write("a.idx", index.bytes());
  const auto source = open_ids(bin);
  EXPECT_EQ(all_of(*source), (IdDocuments{{1, 2, 3}, {}, {}, {4, 5, 6, 7}}));
  expect_random_access(*source);
  EntryIndex* const entries = source->entry_index();
  ASSERT_NE(entries, nullptr);
  EXPECT_EQ(entries->lengths(), (std::vector<int32_t>{2, 1, 0, 4}));
  EXPECT_EQ(entries->entry(1).at(0), 3);
  EXPECT_EQ(entries->entry(3).size, 4u);
}

TEST(MegatronFiles, WithoutBoundariesOfDocumentsEachEntryIsOne) {
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
  EXPECT_PRED_FORMAT2(contains, refusal(bin), "it is a multimodal corpus: its entry 1 has mode 1");
}

TEST(MegatronFiles, TheirUsualNameHasNoExtension) {
  const TemporaryFolder folder;
  write_megatron(folder, "corpus_text_document", kDocuments);
  const auto source = open_ids((folder / "corpus_text_document").string());
  EXPECT_EQ(all_of(*source), kDocuments);
  EXPECT_PRED_FORMAT2(contains, source->description(), "corpus_text_document.bin (4 documents, 12 tokens)");
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "corpus_text_document.idx").string()), "describes a file of ids");
}

/// The name of a file in Megatron-LM's cache, which has the MD5 sum of what it describes.
const std::string kCached = "cache/GPTDataset_indices/0123456789abcdef0123456789abcdef-GPTDataset-train-";

TEST(MegatronFiles, TheFolderOfMegatronsCacheHasTheCorpusNameAndIsNotTheCorpus) {
  const TemporaryFolder folder;
  write_megatron(folder, "corpus_text_document", kDocuments);
  const std::string prefix = (folder / "corpus_text_document").string();
  for (const char* end : {"description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"}) {
    folder.write("corpus_text_document/" + kCached + end, "{\"class\": \"GPTDataset\"}");
  }
  EXPECT_EQ(all_of(*open_ids(prefix)), kDocuments);
  // The folder of corpora is read without the cache, and says nothing of it.
  const TextFiles found = find_text_files(folder.string());
  EXPECT_EQ(found.files, std::vector<fs::path>{prefix + ".bin"});
  EXPECT_EQ(found.left_out, 0);
  folder.write("corpus_text_document/.notes.txt", "hidden");
  folder.write("corpus_text_document/log", "of another kind");
  EXPECT_EQ(all_of(*open_ids(prefix)), kDocuments);
}

TEST(MegatronFiles, AFileOfMegatronsCacheIsKnownByItsWholeName) {
  for (const char* name : {"0a1b-GPTDataset-train-description.txt", "ff-MockGPTDataset-valid-shuffle_index.npy",
                           "0f3a-BlendedDataset-test-dataset_sample_index.npy"}) {
    EXPECT_TRUE(is_megatron_cache(name)) << name;
  }
  for (const char* name : {"description.txt", "GPTDataset-train-description.txt", "0a1b-GPTDataset-train-notes.txt",
                           "0a1b-train-description.txt", "0a1b-GPTDataset-train-my-description.txt", "0a1b", ""}) {
    EXPECT_FALSE(is_megatron_cache(name)) << name;
  }
}

TEST(MegatronFiles, AFolderWithFilesOfItsOwnBesideACorpusOfItsNameIsRefusedUntilOneIsNamed) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", kDocuments);
  folder.write("a/" + kCached + "description.txt", "{}");
  folder.write("a/more/b.txt", "text");
  const std::string prefix = (folder / "a").string();
  const std::string message = refusal(prefix);
  EXPECT_PRED_FORMAT2(contains, message, "and also a folder that holds " + prefix + "/more/b.txt");
  EXPECT_PRED_FORMAT2(contains, message, "Name " + prefix + ".bin for the one, or " + prefix + "/ for the other");
  EXPECT_EQ(all_of(*open_ids(prefix + ".bin")), kDocuments);
  EXPECT_EQ(find_text_files(prefix + "/").files, std::vector<fs::path>{prefix + "/more/b.txt"});
  fs::remove(prefix + "/more/b.txt");
  fs::create_directory_symlink(folder / "a/cache", prefix + "/more/link");
  EXPECT_PRED_FORMAT2(contains, refusal(prefix), "holds " + prefix + "/more/link");
  fs::remove(prefix + ".idx");
  fs::remove(prefix + "/more/link");
  folder.write("a/c.txt", "text");
  EXPECT_EQ(find_text_files(prefix).files, std::vector<fs::path>{prefix + "/c.txt"}) << "no corpus without an index";
}

TEST(MegatronFiles, AGlobThatAlsoMatchesIndexesReadsTheirFiles) {
  const TemporaryFolder folder;
  write_megatron(folder, "corpus/a", {{1}, {2}});
  write_megatron(folder, "corpus/b", {{3}});
  EXPECT_EQ(all_of(*open_ids((folder / "corpus/*").string())), (IdDocuments{{1}, {2}, {3}}));
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "corpus/*.idx").string()), "a.idx describes a file of ids");
  folder.write("corpus/c.idx", "of no file");
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "corpus/*").string()), "c.idx");
  folder.write("ds/a.ds", test::id_bytes<uint16_t>({{7}}));
  folder.write("ds/a.ds.index", test::datatrove_index({{7}}));
  for (const char* name : {"ds/a.ds.metadata", "ds/a.ds.loss"}) folder.write(name, "x");
  EXPECT_EQ(all_of(*open_ids((folder / "ds/a*").string())), (IdDocuments{{7}}));
}

TEST(MegatronFiles, TwoNamesLeadToOneCorpusIfTheyFindTheSameFiles) {
  const TemporaryFolder folder;
  write_megatron(folder, "one/a", kDocuments);
  write_megatron(folder, "two/a", kDocuments);
  write_megatron(folder, "two/b", kDocuments);
  const auto is_one = [&](const std::string& path) {
    return name_one_corpus((folder / "one/a").string(), (folder / path).string());
  };
  for (const char* same : {"one/a", "one/a.bin", "one", "one/", "one/*", "o*/a.bin"}) EXPECT_TRUE(is_one(same)) << same;
  for (const char* other : {"two/a", "two", "*/a.bin", "missing", "one/*.idx"}) EXPECT_FALSE(is_one(other)) << other;
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
  EXPECT_EQ(source->entry_index(), nullptr);
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
    index.more_entries = more;
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

TEST_F(BadMegatronFile, EntriesAndDocumentsThatDoNotFollowEachOtherAreNamed) {
  test::MegatronIndex index = right_;
  index.lengths[1] = -1;
  EXPECT_PRED_FORMAT2(contains, refused(index), "entry 1 has the length -1");
  index = right_;
  index.places[1] += 4;
  EXPECT_PRED_FORMAT2(contains, refused(index), "entry 1 begins at byte 20, and the one before it ends at byte 16");
  index = right_;
  index.boundaries[2] = 0;
  EXPECT_PRED_FORMAT2(contains, refused(index), "document 1 ends before it begins, at entry 0");
  index = right_;
  index.boundaries[0] = 1;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its first document does not begin with the first entry");
  index = right_;
  index.boundaries.back() = 7;
  EXPECT_PRED_FORMAT2(contains, refused(index), "its last document ends at entry 7 of 4");
  index.boundaries.pop_back();
  EXPECT_PRED_FORMAT2(contains, refused(index), "its last document ends at entry 3 of 4");
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

}  // namespace
}  // namespace titan
