// Files of datatrove and nanotron: the documents of their index, and what does not fit refused in one sentence.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "corpus/id_files.h"
#include "src/corpus/file_source.h"
#include "src/corpus/token_source.h"
#include "titan/corpus/vocabulary.h"

namespace titan {
namespace {

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

TEST(DatatroveFiles, APipeBesideThemIsRefusedAndNotWaitedFor) {
  for (const char* extension : {".index", ".metadata"}) {
    const TemporaryFolder folder;
    const std::string ds = folder.write("a.ds", test::id_bytes<uint16_t>(kDocuments));
    folder.write("a.ds.index", test::datatrove_index(kDocuments));
    fs::remove(ds + extension);
    ASSERT_EQ(::mkfifo((ds + extension).c_str(), 0600), 0);
    EXPECT_PRED_FORMAT2(contains, refusal(ds), ds + extension + ": this is not a file but a pipe");
  }
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

}  // namespace
}  // namespace titan
