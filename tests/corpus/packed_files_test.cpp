// .gz and .zst files are what was packed into them; one that is cut off or damaged says where.
#include <gtest/gtest.h>

#include "src/corpus/file_reader.h"
#include "src/corpus/text_files.h"
#include "support/files.h"
#include "support/packed.h"
#include "support/texts.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;

std::string whole(const std::string& path, int64_t from = 0, size_t piece = 1000) {
  BufferedFile file(path, from);
  std::string all;
  for (std::string_view bytes; !(bytes = file.peek(piece)).empty(); file.consume(bytes.size())) all += bytes;
  return all;
}

std::vector<std::string> texts_in(const std::string& path) {
  TextFileSource source(path, "text", BadRecord::error);
  std::vector<std::string> texts;
  for (Document document; source.next(document);) texts.push_back(document.text);
  return texts;
}

std::string failure(const std::string& path) {
  return message_of(ExitCode::bad_data, [&] { whole(path); });
}

/// Text that packs to something, with records of many lengths.
std::string varied_records() {
  std::string lines;
  for (const std::string& text : test::random_texts(2000, 900)) lines += "{\"text\": \"" + text + "\"}\n";
  return lines;
}

class PackedFile : public testing::TestWithParam<const char*> {
 protected:
  std::string pack(const std::string& bytes) const {
    return GetParam() == std::string(".gz") ? test::gzip(bytes) : test::zstd(bytes);
  }
  std::string write(const std::string& bytes) const {
    return folder_.write(std::string("a.jsonl") + GetParam(), bytes);
  }

  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, PackedFile, testing::Values(".gz", ".zst"),
                         [](const auto& info) { return std::string(info.param).substr(1); });

TEST_P(PackedFile, IsWhatWasPackedIntoItFromAnyOffset) {
  const std::string bytes = varied_records();
  const std::string path = write(pack(bytes));
  EXPECT_EQ(whole(path), bytes);
  for (const int64_t from : {1L, 4096L, 262'144L, 600'001L, static_cast<int64_t>(bytes.size())}) {
    EXPECT_EQ(whole(path, from), bytes.substr(static_cast<size_t>(from)));
  }
  EXPECT_EQ(texts_in(path), texts_in(folder_.write("plain.jsonl", bytes)));
}

TEST_P(PackedFile, MayBeSeveralOneAfterTheOther) {
  const std::string bytes = varied_records();
  const std::string path = write(pack(bytes.substr(0, 1000)) + pack("") + pack(bytes.substr(1000)));
  EXPECT_EQ(whole(path), bytes);
}

TEST_P(PackedFile, CutOffAnywhereIsAnErrorThatSaysWhere) {
  const std::string packed = pack(varied_records());
  for (const size_t length : {size_t{1}, size_t{10}, size_t{500}, packed.size() / 2, packed.size() - 1}) {
    const std::string message = failure(write(packed.substr(0, length)));
    EXPECT_PRED_FORMAT2(test::contains, message, "data are cut off (at byte " + with_thousands(int64_t(length)));
    EXPECT_PRED_FORMAT2(test::contains, message, std::string("a.jsonl") + GetParam());
    EXPECT_PRED_FORMAT2(test::contains, message, "Get the whole file again");
  }
  EXPECT_PRED_FORMAT2(test::contains, failure(write("")), "data are cut off");
}

TEST_P(PackedFile, DamagedIsAnErrorThatSaysWhere) {
  EXPECT_PRED_FORMAT2(test::contains, failure(write("this was never packed, whatever its name says")), "not valid ");
  std::string packed = pack(varied_records());
  const std::string trailing = packed + "garbage";
  EXPECT_PRED_FORMAT2(test::contains, failure(write(trailing)), "not valid ");
}

TEST(GzipFile, AFlippedBitIsFoundByItsChecksum) {
  TemporaryFolder folder;
  std::string packed = test::gzip(varied_records());
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 4);
  EXPECT_PRED_FORMAT2(test::contains, failure(folder.write("a.txt.gz", packed)), "not valid gzip data");
}

TEST(GzipFile, ZerosAfterTheLastMemberArePadding) {
  TemporaryFolder folder;
  EXPECT_EQ(whole(folder.write("a.txt.gz", test::gzip("text") + std::string(1000, '\0'))), "text");
}

TEST(PlainFile, ThatShrinksWhileItIsReadIsNamed) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.txt", std::string(2'000'000, 'x'));
  BufferedFile file(path, 0);
  file.consume(file.peek(1000).size());
  std::filesystem::resize_file(path, 1'000'000);
  const std::string message = message_of(ExitCode::bad_data, [&] { file.peek(1'900'000); });
  EXPECT_PRED_FORMAT2(test::contains, message,
                      "a.txt: the file shrank while it was read: it had 2,000,000 bytes and now ends after 1,000,000");
}

TEST(LongLine, IsABadRecordThatIsNeverHeldWhole) {
  TemporaryFolder folder;
  const std::string fine = "{\"text\": \"fine\"}\n";
  const std::string path =
      folder.write("a.jsonl", fine + "{\"text\": \"" + std::string(100'000'000, 'x') + "\"}\n" + fine);
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { texts_in(path); }),
                      "a.jsonl:2: this line is longer than 64.00 MiB");
  TextFileSource source(path, "text", BadRecord::skip);
  Document document;
  ASSERT_TRUE(source.next(document));
  ASSERT_TRUE(source.next(document));
  EXPECT_EQ(document.text, "fine");
  EXPECT_EQ(document.start.line, 3);
  EXPECT_EQ(source.counters().bad_records, 1);
}

TEST(LineEndings, MayBeMixedButEveryRecordEndsInALineFeed) {
  TemporaryFolder folder;
  EXPECT_EQ(texts_in(folder.write("a.jsonl", "{\"text\": \"one\"}\r\n{\"text\": \"two\"}\n\r\n{\"text\": \"three\"}")),
            (std::vector<std::string>{"one", "two", "three"}));
  const std::string path = folder.write("b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\r{\"text\": \"three\"}\r");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { texts_in(path); }),
                      "b.jsonl:2: this line is not JSON (it holds carriage returns without a line feed");
}

TEST(Links, ToFoldersAreFollowedAndLoopsAreNamed) {
  namespace fs = std::filesystem;
  TemporaryFolder folder, other;
  folder.write("corpus/a.txt", "one");
  other.write("b.txt", "two");
  fs::create_directory_symlink(other.string(), folder / "corpus/more");
  EXPECT_EQ(texts_in((folder / "corpus").string()), (std::vector<std::string>{"one", "two"}));
  fs::create_directory_symlink(folder / "corpus", folder / "corpus/loop");
  const std::string message = message_of(ExitCode::bad_data, [&] { texts_in((folder / "corpus").string()); });
  EXPECT_PRED_FORMAT2(test::contains, message, "corpus/loop is a link that leads back to");
  EXPECT_PRED_FORMAT2(test::contains, message, "Remove the link");
  fs::create_symlink(folder / "x.txt", folder / "x.txt");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { texts_in((folder / "x.txt").string()); }),
                      "x.txt: this is a link that leads back to itself");
  fs::remove(folder / "corpus/loop");
  fs::create_symlink(folder / "none.txt", folder / "corpus/c.txt");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { texts_in((folder / "corpus").string()); }),
                      "c.txt is a link to nothing");
}

TEST(RecordText, TakesTheOutermostFieldAndTheLastOfSeveral) {
  EXPECT_EQ(read_record(R"({"a": {"text": "inner"}, "text": "outer", "b": ["text"]})", "text").text, "outer");
  EXPECT_EQ(read_record(R"({"text": 1, "text": "two"})", "text").text, "two");
  EXPECT_EQ(read_record(R"({"text": {"text": "x"}})", "text").problem,
            "the field \"text\" of this record is not a string but of type object");
  EXPECT_EQ(read_record(R"({"text": "x"} {)", "text").problem, "this line is not JSON from column 15 on");
  EXPECT_EQ(read_record(std::string(60'000, '['), "text").problem, "this line is not JSON from column 60001 on");
}

TEST(RecordText, ANulByteDoesNotEndARecord) {
  const std::string two = R"({"text": "x", "ids": [1]})" + std::string(1, '\0') + R"({"text": "y", "ids": [2]})";
  const std::string problem = "this line is not JSON from column 26 on, where a NUL byte is";
  EXPECT_EQ(read_record(two, "text").problem, problem);
  EXPECT_EQ(read_record(two.substr(0, 26), "text").problem, problem);
  std::vector<int32_t> ids;
  EXPECT_EQ(read_ids(two, "ids", *test::byte_tokenizer(), ids), problem);
  EXPECT_PRED_FORMAT2(test::contains, read_record(std::string("{\0\"\0a\0", 6), "text").problem, "as UTF-16 does");
}

TEST(RecordText, NumbersThatJsonDoesNotHaveDoNoHarmWhereTheyAreNotRead) {
  const std::string odd = R"("a": NaN, "b": [-Infinity, Infinity], "c": 1e999, "d": -2E+400)";
  EXPECT_EQ(read_record("{" + odd + R"(, "text": "NaN and 1e999 stay"})", "text").text, "NaN and 1e999 stay");
  EXPECT_EQ(read_record("{" + odd + R"(, "text": "cut \ud83d"})", "text").text, "cut \uFFFD");
  EXPECT_EQ(read_record(R"({"a": NaN, "text": "x" "y"})", "text").problem, "this line is not JSON from column 26 on");
  EXPECT_EQ(read_record(R"({"é": NaN, "text": nan})", "text").problem, "this line is not JSON from column 21 on");
  EXPECT_FALSE(read_record(R"({"text": NaN})", "text").text);
  EXPECT_FALSE(read_record(R"({"text": 1e999})", "text").text);
  std::vector<int32_t> ids;
  EXPECT_EQ(read_ids(R"({"score": -Infinity, "ids": [1, 2]})", "ids", *test::byte_tokenizer(), ids), "");
  EXPECT_EQ(read_ids(R"({"ids": [1, NaN]})", "ids", *test::byte_tokenizer(), ids),
            "item 1 of \"ids\" is not a whole number");
}

}  // namespace
}  // namespace titan
