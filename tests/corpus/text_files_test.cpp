#include "src/corpus/text_files.h"

#include "support/corpora.h"
#include "support/files.h"
#include "support/packed.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;
using test::texts_of;

TextFileSource open(const std::string& path, BadRecord policy = BadRecord::error, size_t largest = 1 << 20) {
  return TextFileSource(path, "text", policy, largest);
}

TEST(TextFiles, ATextFileIsOneDocument) {
  TemporaryFolder folder;
  auto source = open(folder.write("a.txt", "first line\n\nsecond paragraph\n"));
  EXPECT_EQ(texts_of(source), std::vector<std::string>{"first line\n\nsecond paragraph\n"});
}

TEST(TextFiles, AFolderIsReadInTheOrderOfItsPathsAndWhatIsNoTextIsLeftOut) {
  TemporaryFolder folder;
  folder.write("b.txt", "two");
  folder.write("a.jsonl", "{\"text\": \"one\"}\n");
  folder.write("c/d.txt", "three");
  folder.write("readme.md", "not read");
  folder.write(".hidden.txt", "not read");
  folder.write(".git/x.txt", "not read");
  auto source = open(folder.string());
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_PRED_FORMAT2(test::contains, source.description(), "3 files");
  EXPECT_EQ(source.take_notices(), std::vector<std::string>{"corpus " + folder.string() +
                                                            ": 1 file of another kind is left out, such as readme.md"});
}

TEST(TextFiles, HowManyFilesOfAFolderAreLeftOutIsTold) {
  TemporaryFolder folder;
  for (const char* name : {"a.txt", "c.arrow", "b.jsonl.xz"}) folder.write(name, "text");
  const std::vector<std::string> notices = open(folder.string()).take_notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, notices[0], "2 files of other kinds are left out, such as b.jsonl.xz");
  EXPECT_TRUE(open(folder.write("d/only.txt", "text")).take_notices().empty());
}

TEST(TextFiles, TheCaseOfAnExtensionDoesNotMatter) {
  TemporaryFolder folder;
  folder.write("A.TXT", "one");
  folder.write("B.Jsonl", "{\"text\": \"two\"}\n");
  auto source = open(folder.string());
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one", "two"}));
}

TEST(TextFiles, AGlobChoosesFiles) {
  TemporaryFolder folder;
  for (const char* name : {"part-2.txt", "part-1.txt", "other.txt"}) folder.write(name, name);
  auto source = open(folder.string() + "/part-*.txt");
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"part-1.txt", "part-2.txt"}));
}

TEST(TextFiles, HalfASurrogatePairInARecordIsAMalformedCharacterNotABadRecord) {
  TemporaryFolder folder;
  auto source = open(folder.write("a.jsonl", "{\"text\": \"cut \\ud83d\"}\n{\"text\": \"whole \\ud83e\\udd94\"}\n"));
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"cut \uFFFD", "whole 🦔"}));
  EXPECT_EQ(source.counters().invalid_utf8, 1);
  EXPECT_EQ(source.counters().bad_records, 0);
}

TEST(TextFiles, ALargeTextFileIsCutAtBlankLinesElseLinesElseCharacters) {
  TemporaryFolder folder;
  auto paragraphs = open(folder.write("a.txt", "aaaa aaaa\n\nbbbb\nbbbb\n\ncc\n"), BadRecord::error, 16);
  EXPECT_EQ(texts_of(paragraphs), (std::vector<std::string>{"aaaa aaaa\n\n", "bbbb\nbbbb\n\ncc\n"}));
  auto lines = open(folder.write("b.txt", "aaaa\nbbbb\ncccc\ndddd\n"), BadRecord::error, 12);
  EXPECT_EQ(texts_of(lines), (std::vector<std::string>{"aaaa\nbbbb\n", "cccc\ndddd\n"}));
  auto characters = open(folder.write("c.txt", "漢漢漢漢漢"), BadRecord::error, 7);
  EXPECT_EQ(texts_of(characters), (std::vector<std::string>{"漢漢", "漢漢", "漢"}));
}

TEST(TextFiles, JsonLinesMayHaveBlankLinesOtherFieldsAndNoLastNewline) {
  TemporaryFolder folder;
  auto source = open(folder.write(
      "a.jsonl", "{\"id\": 1, \"text\": \"one\\n\\u00e9\"}\r\n\n  \n{\"text\": \"\"}\n{\"text\": \"two\"}"));
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one\n\xC3\xA9", "", "two"}));
  TextFileSource other(folder.write("b.json", "{\"body\": \"x\"}\n"), "body", BadRecord::error);
  EXPECT_EQ(texts_of(other), std::vector<std::string>{"x"});
}

TEST(TextFiles, ALineLongerThanTheReadAheadIsOneRecord) {
  TemporaryFolder folder;
  std::string text(3'000'000, 'x');
  auto source = open(folder.write("a.jsonl", "{\"text\": \"" + text + "\"}\n{\"text\": \"end\"}\n"));
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{text, "end"}));
}

TEST(TextFiles, BadRecordsAreSkippedAndCountedWhenAskedAndTheFirstIsNamed) {
  TemporaryFolder folder;
  auto source = open(folder.write("a.jsonl", "no\n{\"text\": \"one\"}\n{}\n{\"text\": \"two\"}\n"), BadRecord::skip);
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(source.counters().bad_records, 2);
  EXPECT_EQ(source.counters().documents, 2);
  auto notices = source.take_notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_PRED_FORMAT2(test::contains, notices[0], "a.jsonl:1: this line is not JSON");
}

TEST(TextFiles, MalformedUtf8IsReplacedAndCounted) {
  TemporaryFolder folder;
  folder.write("a.txt", "ab\xFF\xFEz");
  folder.write("b.jsonl", "{\"text\": \"\xE2\x82\"}\n");
  auto source = open(folder.string());
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"ab\xEF\xBF\xBD\xEF\xBF\xBDz", "\xEF\xBF\xBD"}));
  EXPECT_EQ(source.counters().invalid_utf8, 3);
}

TEST(TextFiles, EveryDocumentIsFoundAgainFromItsPosition) {
  TemporaryFolder folder;
  folder.write("a.txt", "one\n\ntwo\n\nthree\n\nfour\n\n");
  folder.write("b.jsonl", "{\"text\": \"five\"}\n\n{}\n{\"text\": \"six\"}\n");
  folder.write("c.txt", "seven");
  auto source = open(folder.string(), BadRecord::skip, 8);
  std::vector<Document> documents;
  for (Document document; source.next(document);) documents.push_back(document);
  ASSERT_GE(documents.size(), 5u);
  test::expect_found_again(source, documents);
}

TEST(TextFiles, LineNumbersAreStillRightAfterContinuing) {
  TemporaryFolder folder;
  auto source = open(folder.write("a.jsonl", "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\nbroken\n"));
  Document document;
  source.next(document);
  source.next(document);
  source.seek(document.start);
  source.next(document);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { source.next(document); }), "a.jsonl:4:");
}

TEST(TextFiles, AMarkOfUtf8AtTheBeginningIsNoTextHoweverTheFileIsRead) {
  TemporaryFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  folder.write("c/a.txt", mark + "one");
  folder.write("c/b.jsonl", mark + "{\"text\": \"two\"}\n{\"text\": \"" + mark + "three\"}\n");
  folder.write("c/c.txt", mark);
  folder.write("c/d.jsonl", mark + "\n");
  folder.write("c/e.txt.gz", test::gzip(mark + "four"));
  TextFileSource source((folder / "c").string(), "text", BadRecord::error);
  EXPECT_EQ(texts_of(source), (std::vector<std::string>{"one", "two", mark + "three", "four"}));
  source.seek({});
  EXPECT_EQ(texts_of(source).size(), 4u);
  std::filesystem::remove(folder / "c/e.txt.gz");
  TextFileSource any_order((folder / "c").string(), "text", BadRecord::error);
  ASSERT_EQ(any_order.count_documents(), 3);
  std::vector<std::string> texts;
  for (Document document; texts.size() < 3; texts.push_back(document.text)) {
    ASSERT_TRUE(any_order.read(static_cast<int64_t>(texts.size()), document));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "two", mark + "three"}));
}

TEST(TextFiles, AFileThatShrinksBeforeItsTurnIsNamedWithBothSizes) {
  TemporaryFolder folder;
  folder.write("c/a.jsonl", "{\"text\": \"one\"}\n");
  folder.write("c/b.jsonl", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  TextFileSource source((folder / "c").string(), "text", BadRecord::error);
  Document document;
  ASSERT_TRUE(source.next(document));
  std::filesystem::resize_file(folder / "c/b.jsonl", 16);  // a line, whole
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { source.next(document); }),
                      "b.jsonl: the file shrank: it had 34 bytes when the corpus was opened and now has 16");
}

TEST(TextFiles, FingerprintsDifferWhenNamesOrSizesDo) {
  TemporaryFolder one, two, three;
  for (auto* folder : {&one, &two, &three}) folder->write("a.txt", "text");
  EXPECT_EQ(open(one.string()).fingerprint(), open(two.string()).fingerprint());
  three.write("a.txt", "text more");
  EXPECT_NE(open(one.string()).fingerprint(), open(three.string()).fingerprint());
}

TEST(OpenDataset, NamedDatasetsNeedAPathBecauseNothingIsDownloaded) {
  for (const char* name : {"c4", "c4_test", "c4_validation", "text"}) {
    EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { open_dataset({.dataset = name}); }),
                        "needs dataset_path");
  }
  TemporaryFolder folder;
  auto source =
      open_dataset({.dataset = "c4_test", .path = folder.write("data.json", "{\"text\": \"a\", \"url\": \"b\"}\n")});
  EXPECT_EQ(texts_of(*source), std::vector<std::string>{"a"});
  EXPECT_NO_THROW(open_dataset({.dataset = "Text", .path = folder.string()}));
}

}  // namespace
}  // namespace titan
