// Corpora that are one JSON array of records: every record is found in order, at random, and again from its position.
#include "src/corpus/json_array.h"

#include "src/corpus/text_files.h"
#include "support/corpora.h"
#include "support/files.h"
#include "support/packed.h"

namespace titan {
namespace {

using test::contains;
using test::message_of;
using test::TemporaryFolder;
using test::texts_of;

TextFileSource open_array(const std::string& path, BadRecord policy = BadRecord::error) {
  return TextFileSource(path, "text", policy);
}

const std::vector<std::string> kTexts{"one", "t]w,o\"\\", "", "three"};
constexpr const char* kOneLine =
    R"([{"text": "one"}, {"x": [{}, ["]"]], "text": "t]w,o\"\\"},{"text": ""} ,{"text": "three"}])";
constexpr const char* kPretty = R"(
 [
  {
    "text": "one",
    "score": NaN
  },

  {"text": "t]w,o\"\\"}, {"text": ""},
  {
    "text": "three"
  }
]
)";

TEST(JsonArray, ItsElementsAreRecordsHoweverItIsWritten) {
  const TemporaryFolder folder;
  for (const char* json : {kOneLine, kPretty}) {
    for (const std::string& path :
         {folder.write("a.json", json), folder.write("b.jsonl", std::string("\xEF\xBB\xBF") + json),
          folder.write("c.json.gz", test::gzip(json)), folder.write("d.json.zst", test::zstd(json))}) {
      auto source = open_array(path);
      EXPECT_EQ(texts_of(source), kTexts) << path;
      source.seek({});
      EXPECT_EQ(texts_of(source), kTexts) << path;
    }
  }
  auto empty = open_array(folder.write("e.json", "[]\n"));
  EXPECT_EQ(texts_of(empty), std::vector<std::string>());
}

TEST(JsonArray, EveryRecordIsFoundAgainFromItsPositionAndByItsNumber) {
  const TemporaryFolder folder;
  folder.write("c/a.json", kPretty);
  folder.write("c/b.jsonl", "{\"text\": \"line\"}\n");
  folder.write("c/c.json", kOneLine);
  auto source = open_array((folder / "c").string());
  std::vector<Document> documents;
  for (Document document; source.next(document);) documents.push_back(document);
  ASSERT_EQ(documents.size(), 9u);
  test::expect_found_again(source, documents);
  ASSERT_EQ(source.count_documents(), 9);
  for (size_t i = documents.size(); i-- > 0;) {
    Document again;
    ASSERT_TRUE(source.read(static_cast<int64_t>(i), again));
    EXPECT_EQ(again.text, documents[i].text);
  }
}

TEST(JsonArray, ABadRecordIsNamedByItsLine) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a.json", "[\n {\"text\": \"one\"},\n\n {\"text\":\n  2},\n {\"text\": \"three\"}]");
  auto strict = open_array(path);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { texts_of(strict); }),
                      path + ":4: the field \"text\" of this record is not a string but of type number");
  auto source = open_array(path, BadRecord::skip);
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one", "three"}));
}

TEST(JsonArray, OneThatIsCutOffOrGoesOnWrongIsNotReadInSilence) {
  const TemporaryFolder folder;
  const std::string one = "[{\"text\": \"one\"}", nul(1, '\0');
  const std::vector<std::pair<std::string, std::string>> cases{
      {one, "the file ends after this record, inside the array of records"},
      {one + ",", "the array of records that begins this file has no end"},
      {one + ",{\"text\": \"tw", "the file ends inside this record"},
      {one + ",]", "no record follows the comma"},
      {one + "{\"text\": \"two\"}]", "neither a comma nor the end of the array follows"},
      {one + "]\n[]", "there is text after the end of the array"},
      {one + "]" + nul + "[]", "there is text after the end of the array"},
      {one + nul + "]", "neither a comma nor the end of the array follows"},
      {one + "," + nul, "the file ends inside this record"},
      {"[", "the array of records that begins this file has no end"}};
  for (const auto& [json, problem] : cases) {
    const std::string path = folder.write("a.json", json);
    auto strict = open_array(path);
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { texts_of(strict); }), problem);
    auto source = open_array(path, BadRecord::skip);
    const std::vector<std::string> texts = texts_of(source);
    EXPECT_EQ(source.counters().bad_records, 1) << json;
    auto at_random = open_array(path, BadRecord::skip);
    std::vector<std::string> again;
    const int64_t count = at_random.count_documents().value();
    for (int64_t i = 0; i < count; ++i) {
      Document document;
      if (at_random.read(i, document)) again.push_back(document.text);
    }
    EXPECT_EQ(again, texts) << json;
  }
}

TEST(JsonArray, ElementsLongerThanTheReadAheadAreWholeAndTooLongOnesAreSkipped) {
  const TemporaryFolder folder;
  const std::string text(700'000, 'x');
  auto source = open_array(folder.write("a.json", "[{\"text\": \"" + text + "\"}, {\"text\": \"end\"}]"));
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{text, "end"}));
  BufferedFile file(folder / "a.json", 0);
  ASSERT_TRUE(begins_with_array(file));
  enter_array(file);
  int64_t lines = 0;
  EXPECT_EQ(read_element(file, 1000, lines).state, ArrayElement::State::too_long);
  EXPECT_EQ(read_element(file, 1000, lines).bytes, "{\"text\": \"end\"}");
  EXPECT_EQ(read_element(file, 1000, lines).state, ArrayElement::State::end);
}

}  // namespace
}  // namespace titan
