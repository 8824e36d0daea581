// Ids that other programs wrote, whatever their format: their vocabulary, corpora of several files, and the commands.
#include "src/corpus/foreign_ids.h"

#include <gtest/gtest.h>

#include <sstream>

#include "corpus/id_files.h"
#include "src/corpus/token_source.h"
#include "titan/corpus/inspect.h"
#include "titan/corpus/vocabulary.h"

namespace titan {
namespace {

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

TEST(ForeignVocabulary, AnIdOutsideTheProbeIsFoundWhenItsDocumentIsRead) {
  const TemporaryFolder folder;
  constexpr int64_t kDocument = int64_t{1} << 20, kCount = 20, kBlock = kProbeBytes / 64 / 2;
  std::vector<uint16_t> ids(static_cast<size_t>(kDocument * kCount), 7);
  ids[static_cast<size_t>(kBlock + 1000)] = 700;  // after the first block of the probe
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

TEST(ForeignVocabulary, AProbeReadsNoMoreOfFilesWhoseIdsHaveOtherWidths) {
  const TemporaryFolder folder;
  constexpr int64_t kNarrow = int64_t{1} << 20, kWide = 3'000'001;
  const auto write = [&](const std::string& name, uint8_t type, int64_t width, int64_t ids) {
    folder.write(name + ".idx", test::megatron_index({{static_cast<int32_t>(ids)}}, type, width).bytes());
    folder.write(name + ".bin", "");
    fs::resize_file(folder / (name + ".bin"),
                    static_cast<uintmax_t>(ids * width));  // zeros, without blocks on the disk
  };
  for (const bool narrow_first : {true, false}) {
    write(narrow_first ? "a" : "b", 1, 1, kNarrow);
    write(narrow_first ? "b" : "a", 5, 8, kWide);
    const auto source = open_ids(folder.string());
    const IdProbe probe = dynamic_cast<IdSource&>(*source).probe();
    EXPECT_LE(8 * (probe.ids - kNarrow), kProbeBytes) << "even if all narrow ids are among them";
    EXPECT_GE(probe.ids, kProbeBytes / 8);
    EXPECT_EQ(probe.largest, 0);
  }
}

TEST(ForeignVocabulary, ACheckOfAllIdsCountsThoseOutsideAndNamesTheFirst) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", {{1, 5}, {7, 200, 3}});
  write_megatron(folder, "b", {{-4, 300}});
  const RecordedVocabulary tokenizer(100, 1, 2, "");
  const auto source = open_ids(folder.string(), &tokenizer);
  const auto& ids = dynamic_cast<const IdSource&>(*source);
  ids.check_described(tokenizer);
  IdProbe all;
  for (Document document; source->next(document);) add_checked(all, *document.tokens);
  const std::string message = message_of(ExitCode::bad_data, [&] { ids.check_ids(all, tokenizer); });
  EXPECT_PRED_FORMAT2(contains, message, "a.bin holds the id 200 (its id 3, counted from 0), and this run's tokenizer");
  EXPECT_PRED_FORMAT2(contains, message, "That is the first of 3 such ids among 7.");
}

TEST(ForeignVocabulary, AFileThatDoesNotSayItsVocabularyStandsForNoTokenizer) {
  const TemporaryFolder folder;
  write_megatron(folder, "a", kDocuments);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { open_vocabulary(folder / "a.bin"); }),
                      "it does not say how many ids its tokenizer has");
}

TEST(ForeignIds, AFolderWhoseNamesTellSplitsIsNotReadAsAWhole) {
  const TemporaryFolder folder;
  const std::string bytes = test::llm_c_header(20240520, 1, 2) + test::id_bytes<uint16_t>({{50256, 1}});
  folder.write("all/fineweb_train_000001.bin", bytes);
  folder.write("all/fineweb_val_000000.bin", bytes);
  EXPECT_PRED_FORMAT2(contains, refusal((folder / "all").string()), "name the files for training with a glob");
  EXPECT_EQ(all_of(*open_ids((folder / "all/*train*.bin").string())), (IdDocuments{{50256, 1}}));
  write_megatron(folder, "shards/train-00000-of-00002", {{1}});
  write_megatron(folder, "shards/train-00001-of-00002", {{2}});
  EXPECT_EQ(all_of(*open_ids((folder / "shards").string())), (IdDocuments{{1}, {2}}));
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
        "documents     2\n", "entries       3\n", "tokens        7 of int32\n", "vocabulary    the files do not say\n",
        "largest id    700 of 7 looked at\n", "as written    no id is added to a document or left out\n"}) {
    EXPECT_PRED_FORMAT2(contains, info, line);
  }
  EXPECT_PRED_FORMAT2(contains, shown(describe_corpus), "a document has 4 tokens on average, at most 4\n");
  EXPECT_PRED_FORMAT2(contains, shown(show_documents), "(document 1, 4 tokens)");
}

}  // namespace
}  // namespace titan
