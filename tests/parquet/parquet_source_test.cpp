// Documents of Parquet files: their order and positions, and what is said of files and columns that cannot be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "parquet/written_file.h"
#include "src/corpus/parquet_source.h"
#include "support/corpora.h"
#include "support/files.h"
#include "titan/corpus/document_source.h"

namespace titan {
namespace {

using test::contains;
using test::message_of;
using test::texts_of;
using test::write_texts;

std::vector<std::optional<std::string>> numbered(int count, const std::string& prefix = "d") {
  std::vector<std::optional<std::string>> texts;
  for (int i = 0; i < count; ++i) texts.push_back(prefix + std::to_string(i));
  return texts;
}

std::vector<std::string> plain(const std::vector<std::optional<std::string>>& texts) {
  std::vector<std::string> all;
  for (const auto& one : texts) all.push_back(*one);
  return all;
}

class ParquetFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// What opening and reading a corpus throws.
  std::string refusal(const std::string& name, const std::string& field = "text") const {
    return message_of(ExitCode::bad_data, [&] {
      DatasetOptions options = text(path(name));
      options.text_field = field;
      texts_of(*open_dataset(options));
    });
  }

  test::TemporaryFolder folder_;
};

TEST_F(ParquetFiles, GiveTheTextsOfAColumnInOrderAndFindEachAgain) {
  write_texts(folder_ / "c/a.parquet", numbered(7), 3);
  write_texts(folder_ / "c/b.parquet", {}, 3);
  write_texts(folder_ / "c/c.parquet", numbered(4, "e"), 4);
  const auto source = open_dataset(text(path("c")));
  std::vector<Document> documents;
  for (Document document; source->next(document);) documents.push_back(document);
  std::vector<std::string> expected = plain(numbered(7)), more = plain(numbered(4, "e"));
  expected.insert(expected.end(), more.begin(), more.end());
  source->seek({});
  EXPECT_EQ(texts_of(*source), expected);
  test::expect_found_again(*source, documents);
  EXPECT_EQ(documents[4].start, (SourcePosition{4, 0, 1, 2})) << "the second row of the second row group";
  EXPECT_PRED_FORMAT2(contains, source->place_of(documents[4].start), "a.parquet, row group 1, row 1");
  EXPECT_PRED_FORMAT2(contains, source->format(), "Parquet, 3 row groups in the first file: id (int64), text (string)");
}

TEST_F(ParquetFiles, AShuffledPassHasEveryDocumentOnceAndMixesTwoRowGroupsAtATime) {
  write_texts(folder_ / "c/a.parquet", numbered(40), 10);
  write_texts(folder_ / "c/b.parquet", numbered(25, "e"), 10);
  DatasetOptions options = text(path("c"));
  options.shuffle_seed = 5;
  const auto source = open_dataset(options);
  const auto in_order = texts_of(*open_dataset(text(path("c"))));
  std::set<std::vector<std::string>> passes{in_order};
  for (int pass = 0; pass < 3; ++pass) {
    source->begin_pass(pass);
    std::vector<std::string> texts = texts_of(*source);
    passes.insert(texts);
    std::set<std::string> groups;
    for (size_t i = 0; i < 15; ++i) groups.insert(texts[i].substr(0, texts[i].size() > 2 ? 2 : 1));
    EXPECT_LE(groups.size(), 2u + 1) << "documents d0 to d9 have names of two characters";
    std::sort(texts.begin(), texts.end());
    std::vector<std::string> sorted = in_order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(texts, sorted);
  }
  EXPECT_EQ(passes.size(), 4u) << "another order in each pass";
  EXPECT_PRED_FORMAT2(contains, source->order(), "shuffled by row groups with seed 5");
}

TEST_F(ParquetFiles, OfAFewStayOpenForReadingInAnyOrder) {
  for (int i = 0; i < 5; ++i) write_texts(folder_ / ("c/" + std::to_string(i) + ".parquet"), numbered(4), 1);
  const auto source = open_dataset(text(path("c")));
  ASSERT_EQ(source->count_documents(), 20);
  Document document;
  for (int64_t first = 0; first < 20; first += 4) EXPECT_TRUE(source->read(first, document));
  for (int i = 0; i < 5; ++i) std::filesystem::remove(folder_ / ("c/" + std::to_string(i) + ".parquet"));
  for (int64_t row = 4; row < 20; ++row) {
    EXPECT_TRUE(source->read(row, document));
    EXPECT_EQ(document.text, "d" + std::to_string(row % 4));
  }
  const std::string said = message_of(ExitCode::bad_data, [&] { source->read(1, document); });
  EXPECT_PRED_FORMAT2(contains, said, "0.parquet") << "four stay open";
}

TEST_F(ParquetFiles, ThatAreReplacedBetweenCountingAndReadingAreRefused) {
  write_texts(folder_ / "a.parquet", numbered(4), 2);
  const auto source = open_dataset(text(path("a.parquet")));
  ASSERT_EQ(source->count_documents(), 4);
  write_texts(folder_ / "a.parquet", numbered(40, "another"), 20);
  Document document;
  const std::string said = message_of(ExitCode::bad_data, [&] { source->read(0, document); });
  EXPECT_PRED_FORMAT2(contains, said, "a.parquet: it was replaced: it is another file than when the corpus was opened");
}

TEST_F(ParquetFiles, ANullIsABadRecordAsInJsonLines) {
  write_texts(folder_ / "a.parquet", {"x", std::nullopt, "y"}, 2);
  EXPECT_PRED_FORMAT2(contains, refusal("a.parquet"), "a.parquet, row group 0, row 1: the column \"text\" is null");
  DatasetOptions options = text(path("a.parquet"));
  options.bad_record = BadRecord::skip;
  const auto source = open_dataset(options);
  EXPECT_EQ(texts_of(*source), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(source->counters().bad_records, 1);
}

TEST_F(ParquetFiles, AColumnThatIsMissingOrNoTextIsNamedWithThoseThatAreThere) {
  write_texts(folder_ / "a.parquet", numbered(2), 2);
  EXPECT_PRED_FORMAT2(contains, refusal("a.parquet", "txet"),
                      "it has no column \"txet\"; its columns are id, text. Did you mean text? Name one with "
                      "data.text_field");
  EXPECT_PRED_FORMAT2(contains, refusal("a.parquet", "id"),
                      "its column \"id\" is not text but of type int64; columns of text: text");
}

TEST_F(ParquetFiles, AFieldOfAStructIsAColumnByItsPath) {
  const auto inner =
      *arrow::StructArray::Make({test::number_array(2), test::text_array({"x", std::nullopt})},
                                {arrow::field("n", arrow::int64()), arrow::field("body", arrow::utf8())});
  const auto schema = arrow::schema({arrow::field("doc", inner->type())});
  test::write_table(folder_ / "a.parquet", arrow::Table::Make(schema, {inner}), 2);
  DatasetOptions options = text(path("a.parquet"));
  options.text_field = "doc.body";
  options.bad_record = BadRecord::skip;
  EXPECT_EQ(texts_of(*open_dataset(options)), std::vector<std::string>{"x"});
  EXPECT_PRED_FORMAT2(contains, refusal("a.parquet", "body"), "its columns are doc, doc.body. Name one");
}

TEST_F(ParquetFiles, IdsAreReadFromAColumnAndNotFromAFieldOfOne) {
  const auto inner = *arrow::StructArray::Make({test::number_array(2), test::text_array({"x", "y"})},
                                               {arrow::field("ids", arrow::int64()), arrow::field("t", arrow::utf8())});
  const auto schema = arrow::schema({arrow::field("doc", inner->type())});
  test::write_table(folder_ / "a.parquet", arrow::Table::Make(schema, {inner}), 2);
  DatasetOptions options = text(path("a.parquet"));
  options.text_field = "doc.ids";
  options.holds_ids = true;
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { texts_of(*open_dataset(options)); }),
                      "it has no column \"doc.ids\", only a field of a column, where ids are not read; its columns are "
                      "doc. Name one with --ids");
}

TEST_F(ParquetFiles, AFieldWithoutANameIsRefused) {
  write_texts(folder_ / "a.parquet", numbered(2), 2);
  DatasetOptions options = text(path("a.parquet"));
  options.text_field = "";
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_config, [&] { open_dataset(options); }),
                      "the name of the field that holds the text is empty");
}

TEST_F(ParquetFiles, ThatAreDamagedOrOfAnotherKindAreRefusedInOneSentence) {
  const std::string whole = write_texts(folder_ / "whole.parquet", numbered(500), 100);
  std::ifstream in(whole, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  folder_.write("cut.parquet", bytes.substr(0, bytes.size() / 2));
  EXPECT_PRED_FORMAT2(contains, refusal("cut.parquet"), "the file is cut off: a Parquet file ends with PAR1");
  folder_.write("late/a.parquet", bytes);
  folder_.write("late/b.parquet", bytes.substr(0, bytes.size() / 2));
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { open_dataset(text(path("late"))); }),
                      "b.parquet: the file is cut off")
      << "before the first document is read";
  folder_.write("small.parquet", "PAR1");
  EXPECT_PRED_FORMAT2(contains, refusal("small.parquet"), "the file is cut off");
  folder_.write("encrypted.parquet", bytes.substr(0, bytes.size() - 4) + "PARE");
  EXPECT_PRED_FORMAT2(contains, refusal("encrypted.parquet"), "this Parquet file is encrypted");
  folder_.write("footer.parquet", bytes.substr(0, bytes.size() - 5) + "\x7FPAR1");
  EXPECT_PRED_FORMAT2(contains, refusal("footer.parquet"), "its last bytes are damaged");
  folder_.write("page.parquet", bytes.substr(0, 1500) + std::string(200, '\xA5') + bytes.substr(1700));
  EXPECT_PRED_FORMAT2(contains, refusal("page.parquet"), "page.parquet: row group ");
  EXPECT_PRED_FORMAT2(contains, refusal("page.parquet"), "column text: ");
  folder_.write("text.parquet", "once upon a time");
  EXPECT_PRED_FORMAT2(contains, refusal("text.parquet"), "this is no Parquet file, although its name says so");
  folder_.write("both/a.parquet", bytes);
  folder_.write("both/b.jsonl", "{\"text\": \"x\"}\n");
  EXPECT_PRED_FORMAT2(contains, refusal("both"), "a.parquet is a Parquet file and b.jsonl holds text");
  folder_.write("named.jsonl", bytes);
  EXPECT_PRED_FORMAT2(contains, refusal("named.jsonl"), "give it a name that ends in .parquet");
}

TEST_F(ParquetFiles, OfADatasetOfTheHubAreThoseThatDatasetsReads) {
  write_texts(folder_ / "set/data/train-00000-of-00001.parquet", numbered(3), 2);
  write_texts(folder_ / "set/data/test-00000-of-00001.parquet", numbered(3, "t"), 2);
  folder_.write("set/README.md",
                "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
                "    path: data/train-*\n  - split: test\n    path: data/test-*\n---\n");
  EXPECT_EQ(texts_of(*open_dataset(text(path("set")))), plain(numbered(3)));
  folder_.write("set/README.md",
                "---\nconfigs:\n- config_name: one\n  data_files: data/train-*\n"
                "- config_name: two\n  data_files: data/test-*\n---\n");
  EXPECT_PRED_FORMAT2(contains, refusal("set"),
                      "README.md names the configurations one, two, of which none is the default");
}

}  // namespace
}  // namespace titan
