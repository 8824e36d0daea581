#include "text_column.h"

#include <parquet/exception.h>

#include <algorithm>
#include <utility>

namespace titan {

TextColumn::TextColumn(std::shared_ptr<parquet::ColumnReader> column)
    : column_(std::move(column)),
      texts_(static_cast<parquet::ByteArrayReader*>(column_.get())),
      present_(column_->descr()->max_definition_level()) {
  if (column_->type() != parquet::Type::BYTE_ARRAY || column_->descr()->max_repetition_level() > 0) {
    throw parquet::ParquetException("it is no column of texts");
  }
}

bool TextColumn::next(std::optional<std::string_view>& text) {
  if (row_ == rows_ && !read()) return false;
  text.reset();
  const bool is_null = present_ > 0 && levels_[static_cast<size_t>(row_)] < present_;
  if (!is_null) text = std::string_view(values_[static_cast<size_t>(value_++)]);
  ++row_;
  return true;
}

bool TextColumn::read() {
  int64_t values = 0;
  row_ = value_ = 0;
  rows_ = texts_->ReadBatch(kTexts, levels_.data(), /*rep_levels=*/nullptr, values_.data(), &values);
  const auto is_present = [&](int16_t level) { return level == present_; };
  const int64_t expected = present_ == 0 ? rows_ : std::count_if(levels_.begin(), levels_.begin() + rows_, is_present);
  if (values != expected) throw parquet::ParquetException("a page has fewer values than its levels say");
  return rows_ > 0;
}

}  // namespace titan
