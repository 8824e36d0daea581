// The texts of one column of a row group, read one by one. Nothing is held but the page, as the file's writer made it,
// and the dictionary: an array of Arrow repeats a text of the dictionary for every row, which makes gigabytes of a page
// of kilobytes.
#pragma once

#include <parquet/column_reader.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace titan {

class TextColumn {
 public:
  /// A column of byte arrays, not within a list. The functions below throw parquet::ParquetException for damaged pages.
  explicit TextColumn(std::shared_ptr<parquet::ColumnReader> column);

  /// The next text, valid until the next call, or nothing if it is null. False at the end of the column.
  bool next(std::optional<std::string_view>& text);

  /// Goes on behind the next `rows` texts, before the first call of `next`; false if there are fewer.
  bool skip(int64_t rows) { return texts_->Skip(rows) == rows; }

 private:
  bool read();

  // Texts that are decoded at once. Only the delta encodings make copies of them.
  static constexpr int64_t kTexts = 16;

  std::shared_ptr<parquet::ColumnReader> column_;
  parquet::ByteArrayReader* texts_;
  int16_t present_;                                // the definition level of a text that is not null
  std::array<int16_t, kTexts> levels_{};           // of the rows read last
  std::array<parquet::ByteArray, kTexts> values_;  // of those that are not null
  int64_t rows_ = 0, row_ = 0, value_ = 0;         // rows read last; the next of them, and its place in values_
};

}  // namespace titan
