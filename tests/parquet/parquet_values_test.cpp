// Values of Parquet columns as texts and in records: JSON, extension types, numbers; and how much memory rows take.
#include <arrow/extension/bool8.h>
#include <arrow/extension/json.h>
#include <arrow/extension/uuid.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parquet/written_file.h"
#include "support/corpora.h"
#include "support/files.h"
#include "titan/corpus/document_source.h"
#include "titan/corpus/parquet_file.h"

namespace titan {
namespace {

using test::contains;
using test::message_of;
using test::texts_of;

using Column = std::pair<std::string, std::shared_ptr<arrow::Array>>;

std::shared_ptr<arrow::Array> json_array(const std::vector<std::optional<std::string>>& texts) {
  return arrow::ExtensionType::WrapArray(arrow::extension::json(), test::text_array(texts));
}

template <class Builder, class Value>
std::shared_ptr<arrow::Array> array_of(const std::vector<Value>& values) {
  Builder builder;
  for (const Value& value : values) test::expect_ok(builder.Append(value));
  return *builder.Finish();
}

class ParquetValues : public testing::Test {
 protected:
  /// `knows_types`: the file says the types of Arrow, as pyarrow's do, not those of Parquet alone.
  std::string write(const std::vector<Column>& columns, int64_t rows_in_group = 100, bool knows_types = true) const {
    std::vector<std::shared_ptr<arrow::Field>> fields;
    std::vector<std::shared_ptr<arrow::Array>> arrays;
    for (const auto& [name, array] : columns) {
      fields.push_back(arrow::field(name, array->type()));
      arrays.push_back(array);
    }
    test::write_table(folder_ / "a.parquet", arrow::Table::Make(arrow::schema(fields), arrays), rows_in_group,
                      knows_types);
    return (folder_ / "a.parquet").string();
  }

  /// The rows as they are read of conversations.
  static std::vector<std::string> records_of(const std::string& path) {
    const std::unique_ptr<ParquetFile> file = open_parquet_file(path);
    file->select({});
    std::vector<std::string> records;
    for (size_t group = 0; group < file->rows().size(); ++group) {
      file->seek(static_cast<int64_t>(group), 0);
      for (ParquetRow row; file->next(row);) records.push_back(row.problem.empty() ? row.bytes : row.problem);
    }
    return records;
  }

  test::TemporaryFolder folder_;
};

TEST_F(ParquetValues, AColumnOfJsonGivesTheTextsThatItsValuesAre) {
  const auto values = json_array({"\"a \\\"story\\\"\\nline two é\"", "\"\\ud83e\\udd94\""});
  for (const bool knows_types : {true, false}) {
    const std::string path = write({{"text", values}}, 100, knows_types);
    EXPECT_EQ(texts_of(*open_dataset({.path = path})), (std::vector<std::string>{"a \"story\"\nline two é", "🦔"}));
  }
}

TEST_F(ParquetValues, AColumnOfJsonHasBadRecordsAsJsonLinesHave) {
  const std::vector<std::optional<std::string>> values{"7", "null", std::nullopt, "\"x\", \"text\": \"y\"", "", "\"x"};
  const std::vector<std::string> problems{
      "the field \"text\" of this record is not a string but of type number",
      "the field \"text\" of this record is not a string but of type null",
      "the column \"text\" is null in this row",
      "the column \"text\" holds JSON, and its value in this row is not JSON from its byte 3 on",
      "not JSON from its byte 0 on",
      "not JSON from its byte 2 on"};
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string path = write({{"text", json_array({values[i], "\"good\""})}});
    const auto read = [&](BadRecord policy) {
      DatasetOptions options{.path = path};
      options.bad_record = policy;
      return texts_of(*open_dataset(options));
    };
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { read(BadRecord::error); }),
                        "row group 0, row 0: ");
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { read(BadRecord::error); }), problems[i]);
    EXPECT_EQ(read(BadRecord::skip), std::vector<std::string>{"good"});
  }
}

TEST_F(ParquetValues, JsonInsideARecordIsPartOfItOrMakesItBad) {
  const auto items = json_array({"{\"role\": \"user\"}", "[1, NaN]", "\"x\"", "1], \"other\": [2"});
  const auto lists =
      *arrow::ListArray::FromArrays(*array_of<arrow::Int32Builder>(std::vector<int>{0, 2, 3, 4}), *items);
  EXPECT_EQ(records_of(write({{"id", test::number_array(3)}, {"messages", lists}})),
            (std::vector<std::string>{
                R"({"id":0,"messages":[{"role": "user"},[1, NaN]]})", R"({"id":1,"messages":["x"]})",
                "the column \"messages\" holds JSON, and its value in this row is not JSON from its byte 1 on"}));
}

TEST_F(ParquetValues, WhatIsJsonIsDecidedAsByPython) {
  const std::vector<std::string> good{"0",
                                      "-0.5e+7",
                                      "1E400",
                                      "NaN",
                                      "-Infinity",
                                      "true",
                                      " [ ] ",
                                      "{}",
                                      "\"\\ud800\"",
                                      "\"\xFF\"",
                                      "[[1,2],{\"a\":null}]\n",
                                      "{\"a\":{\"b\":[]}}"};
  const std::vector<std::string> bad{
      "01", "1.",      "-",      "+1",  ".5",        "1e",  "nul",  "[1,]",       "{,}",   "{\"a\"}",    "{1:2}", "[1}",
      "[",  "\"\\x\"", "\"\n\"", "1 2", "\"\\u12\"", "'a'", "[1]]", "{\"a\":1,}", "tru e", "\"a\"\"b\"", "}",     ""};
  std::vector<std::optional<std::string>> values(good.begin(), good.end());
  values.insert(values.end(), bad.begin(), bad.end());
  const std::vector<std::string> records = records_of(write({{"x", json_array(values)}}));
  ASSERT_EQ(records.size(), values.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].starts_with("{\"x\":"), i < good.size()) << *values[i] << " gave " << records[i];
  }
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(records_of(write({{"x", json_array({deep})}}))[0].size(), deep.size() + 6);
}

TEST_F(ParquetValues, OtherExtensionTypesGiveWhatPyarrowGives) {
  arrow::FixedSizeBinaryBuilder bytes(arrow::fixed_size_binary(16));
  test::expect_ok(
      bytes.Append(std::string("\x01\x23\x45\x67\x89\xab\xcd\xef"
                               "01234567")));
  const auto uuid = arrow::ExtensionType::WrapArray(arrow::extension::uuid(), *bytes.Finish());
  const auto yes =
      arrow::ExtensionType::WrapArray(arrow::extension::bool8(), array_of<arrow::Int8Builder>(std::vector<int8_t>{2}));
  EXPECT_EQ(records_of(write({{"u", uuid}, {"b", yes}}, 1)),
            std::vector<std::string>{R"({"u":"01234567-89ab-cdef-3031-323334353637","b":true})"});
}

TEST_F(ParquetValues, NumbersAreWrittenAsByPython) {
  const std::vector<double> doubles{1.0, -0.0, 0.1, 1e15, 1e16, 1e-4, 1e-5, 123456789012345680.0, 1.0 / 0.0};
  const std::vector<float> floats(doubles.begin(), doubles.end());
  std::vector<uint16_t> halves(doubles.size(), 0x3E00);  // 1.5
  std::vector<std::string> records = records_of(write({{"d", array_of<arrow::DoubleBuilder>(doubles)},
                                                       {"f", array_of<arrow::FloatBuilder>(floats)},
                                                       {"h", array_of<arrow::HalfFloatBuilder>(halves)}}));
  EXPECT_EQ(records, (std::vector<std::string>{R"({"d":1.0,"f":1.0,"h":1.5})", R"({"d":-0.0,"f":-0.0,"h":1.5})",
                                               R"({"d":0.1,"f":0.10000000149011612,"h":1.5})",
                                               R"({"d":1000000000000000.0,"f":999999986991104.0,"h":1.5})",
                                               R"({"d":1e+16,"f":1.0000000272564224e+16,"h":1.5})",
                                               R"({"d":0.0001,"f":9.999999747378752e-05,"h":1.5})",
                                               R"({"d":1e-05,"f":9.999999747378752e-06,"h":1.5})",
                                               R"({"d":1.2345678901234568e+17,"f":1.234567905190871e+17,"h":1.5})",
                                               R"({"d":Infinity,"f":Infinity,"h":1.5})"}));
}

TEST_F(ParquetValues, AColumnOfNullsIsReadAndItsRowsAreBadRecords) {
  const std::string path = write({{"text", *arrow::MakeArrayOfNull(arrow::null(), 5)}}, 2);
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { texts_of(*open_dataset({.path = path})); }),
                      "row group 0, row 0: the column \"text\" is null in this row");
  DatasetOptions options{.path = path};
  options.bad_record = BadRecord::skip;
  const auto source = open_dataset(options);
  EXPECT_EQ(texts_of(*source), std::vector<std::string>());
  EXPECT_EQ(source->counters().bad_records, 5);
}

/// Texts of which many rows repeat a large one: the file has kilobytes.
class ParquetMemory : public ParquetValues {
 protected:
  static constexpr int64_t kRows = 2000, kTextBytes = 400'000, kMostBytes = int64_t{40} << 20;

  /// Writes the rows in pieces, since this test is about the memory for reading.
  std::string write_repeated() const {
    const auto schema = arrow::schema({arrow::field("text", arrow::utf8())});
    const auto file = *arrow::io::FileOutputStream::Open((folder_ / "a.parquet").string());
    auto writer = *parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), file);
    test::expect_ok(writer->NewBufferedRowGroup());
    const std::vector<std::optional<std::string>> texts(10, std::string(kTextBytes, 'x'));
    const auto piece = arrow::RecordBatch::Make(schema, 10, {test::text_array(texts)});
    for (int64_t i = 0; i < kRows / 10; ++i) test::expect_ok(writer->WriteRecordBatch(*piece));
    test::expect_ok(writer->Close());
    test::expect_ok(file->Close());
    return (folder_ / "a.parquet").string();
  }

  /// Reads all rows; returns the most bytes that the library held at once, which takes them from this pool alone.
  static int64_t most_bytes(const std::string& path, const ParquetRequest& request) {
    const std::unique_ptr<ParquetFile> file = open_parquet_file(path);
    file->select(request);
    file->seek(0, 0);
    int64_t rows = 0, most = 0;
    for (ParquetRow row; file->next(row); ++rows) {
      most = std::max(most, arrow::system_memory_pool()->bytes_allocated());
      EXPECT_GE(std::ssize(row.bytes), kTextBytes);
    }
    EXPECT_EQ(rows, kRows);
    EXPECT_GT(most, kTextBytes) << "else the library takes its memory from another pool";
    return most;
  }
};

TEST_F(ParquetMemory, OfATextThatRowsRepeatIsThatOfAFewMegabytesOfRows) {
  const std::string path = write_repeated();
  EXPECT_LT(std::filesystem::file_size(path), 2 << 20);
  EXPECT_LT(most_bytes(path, {.text = "text"}), kMostBytes);
  EXPECT_LT(most_bytes(path, {}), kMostBytes) << "of records";
}

TEST_F(ParquetMemory, ADictionaryBelongsToABatchOfManyRows) {
  // Decoded, the dictionary is larger than a batch should be.
  std::vector<std::optional<std::string>> texts;
  for (char letter = 'A'; letter <= 'z'; ++letter) texts.emplace_back(std::string(100'000, letter));
  arrow::Int32Builder indices;
  for (int64_t row = 0; row < kRows; ++row) test::expect_ok(indices.Append(static_cast<int32_t>(row % 50)));
  const auto type = arrow::dictionary(arrow::int32(), arrow::utf8());
  const auto array = *arrow::DictionaryArray::FromArrays(type, *indices.Finish(), test::text_array(texts));
  const std::unique_ptr<ParquetFile> file = open_parquet_file(write({{"text", array}}, kRows));
  ASSERT_PRED_FORMAT2(contains, file->columns()[0].type, "dictionary");
  file->select({.text = "text"});
  file->seek(0, 0);
  const int64_t before = arrow::system_memory_pool()->total_bytes_allocated();
  int64_t rows = 0;
  for (ParquetRow row; file->next(row); ++rows) EXPECT_EQ(row.bytes[0], static_cast<char>('A' + rows % 50));
  EXPECT_EQ(rows, kRows);
  EXPECT_LT(arrow::system_memory_pool()->total_bytes_allocated() - before, int64_t{1} << 30)
      << "else every row decodes it again: 11 GB";
}

TEST_F(ParquetValues, SkippingReachesEveryRowOfATextAlsoBehindNulls) {
  std::vector<std::optional<std::string>> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(i % 3 == 1 ? std::nullopt : std::optional("t" + std::to_string(i)));
  const std::string path = write({{"text", test::text_array(texts)}}, 25);
  const std::unique_ptr<ParquetFile> file = open_parquet_file(path);
  file->select({.text = "text"});
  for (int64_t i = 39; i >= 0; --i) {
    file->seek(i / 25, i % 25);
    ParquetRow row;
    for (int64_t j = i; j < (i < 25 ? 25 : 40); ++j) {
      ASSERT_TRUE(file->next(row));
      EXPECT_EQ(row.problem.empty() ? row.bytes : "none", texts[static_cast<size_t>(j)].value_or("none"));
    }
    EXPECT_FALSE(file->next(row));
  }
}

}  // namespace
}  // namespace titan
