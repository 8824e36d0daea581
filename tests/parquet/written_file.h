// Parquet files for the tests, written with Arrow.
#pragma once

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace titan::test {

inline void expect_ok(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

inline std::shared_ptr<arrow::Array> text_array(const std::vector<std::optional<std::string>>& texts) {
  arrow::StringBuilder builder;
  for (const auto& text : texts) expect_ok(text ? builder.Append(*text) : builder.AppendNull());
  return *builder.Finish();
}

inline std::shared_ptr<arrow::Array> number_array(size_t count) {
  arrow::Int64Builder builder;
  for (size_t i = 0; i < count; ++i) expect_ok(builder.Append(static_cast<int64_t>(i)));
  return *builder.Finish();
}

inline void write_table(const std::filesystem::path& path, const std::shared_ptr<arrow::Table>& table,
                        int64_t rows_in_group, bool knows_types = true) {
  std::filesystem::create_directories(path.parent_path());
  const auto properties = parquet::WriterProperties::Builder().compression(parquet::Compression::ZSTD)->build();
  parquet::ArrowWriterProperties::Builder types;
  if (knows_types) types.store_schema();
  const auto file = *arrow::io::FileOutputStream::Open(path.string());
  expect_ok(
      parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, rows_in_group, properties, types.build()));
  expect_ok(file->Close());
}

/// A file with the columns `id` and `text`.
inline std::string write_texts(const std::filesystem::path& path, const std::vector<std::optional<std::string>>& texts,
                               int64_t rows_in_group) {
  const auto schema = arrow::schema({arrow::field("id", arrow::int64()), arrow::field("text", arrow::utf8())});
  write_table(path, arrow::Table::Make(schema, {number_array(texts.size()), text_array(texts)}), rows_in_group);
  return path.string();
}

}  // namespace titan::test
