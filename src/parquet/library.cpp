// libtitan_parquet.so: rows of Parquet files, read with Arrow (titan/corpus/parquet_file.h) by one thread. A column of
// text is read value by value (TextColumn), whole rows in batches of about kBatchBytes.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/byte_size.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "text_column.h"
#include "titan/corpus/parquet_file.h"
#include "values.h"

namespace titan {
namespace {

using parquet::arrow::SchemaField;

/// Of decoded rows that are held at once: few enough for little memory, enough that calls are few beside the bytes. How
/// large rows are is known when they are decoded: the footer knows compressed sizes, in which a text that many rows
/// repeat counts once. So batches begin with a row and grow by what the last one had; what follows small rows may be
/// large, which kMostBatchRows bounds.
constexpr int64_t kBatchBytes = int64_t{4} << 20;
constexpr int64_t kMostBatchRows = 256;
constexpr int64_t kBatchGrowth = 4;
/// Compressed bytes that are read at once, of each column: many for a network file system, where every read waits, and
/// few beside a batch.
constexpr int64_t kReadBytes = int64_t{1} << 20;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

/// Arrow's words on one line.
std::string words_of(const std::string& message) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  while (!line.empty() && (line.back() == ' ' || line.back() == '.')) line.pop_back();
  return line;
}

constexpr const char* kRemedy = "Get the file again, or remove it.";

[[noreturn]] void fail_footer(const std::string& what) {
  fail(fmt::format("its footer is damaged: {}. {}", what, kRemedy));
}

/// The text that is read of each row: a column, or a field of a struct column.
struct SelectedText {
  std::string name;                   // of the column
  const SchemaField* leaf = nullptr;  // the column, or the field
  bool is_null = false;               // all its values are
  bool is_json = false;
};

void add_leaves(const SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const SchemaField& child : field.children) add_leaves(child, leaves);
}

class ArrowFile : public ParquetFile {
 public:
  explicit ArrowFile(const std::string& path) {
    parquet::ReaderProperties properties(arrow::system_memory_pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(kReadBytes);
    properties.set_page_checksum_verification(true);
    auto file = arrow::io::ReadableFile::Open(path, arrow::system_memory_pool());
    if (!file.ok()) fail(words_of(file.status().message()) + ".");
    const int64_t bytes = (*file)->GetSize().ValueOr(0);
    try {
      auto opened = parquet::ParquetFileReader::Open(*file, properties);
      check_footer(*opened->metadata(), bytes);
      parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
      arrow_properties.set_pre_buffer(false);               // would read whole row groups ahead, in threads of its own
      arrow_properties.set_arrow_extensions_enabled(true);  // as pyarrow does: columns of JSON are known as such
      auto reader = parquet::arrow::FileReader::Make(arrow::system_memory_pool(), std::move(opened), arrow_properties);
      if (!reader.ok()) fail_footer(words_of(reader.status().message()));
      reader_ = std::move(*reader);
    } catch (const parquet::ParquetException& problem) {
      fail_footer(words_of(problem.what()));
    }
  }

  const std::vector<int64_t>& rows() const override { return rows_; }

  std::vector<ParquetColumn> columns() const override {
    std::vector<ParquetColumn> found;
    for (const SchemaField& field : reader_->manifest().schema_fields) add_column(field, "", found);
    return found;
  }

  void select(const ParquetRequest& request) override {
    if (!request.text.empty()) {
      text_ = find(request.text);
      text_name_ = request.text;
      names_ = text_->name;
      return;
    }
    const auto holds = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const SchemaField& field : reader_->manifest().schema_fields) {
      const std::string& name = field.field->name();
      if (request.columns.empty() ? holds(request.left_out, name) : !holds(request.columns, name)) continue;
      names_ += (columns_.empty() ? "" : ", ") + name;
      columns_.push_back(&field);
      add_leaves(field, leaves_);
    }
  }

  void seek(int64_t group, int64_t row) override {
    group_ = group;
    row_ = in_batch_ = 0;
    texts_.reset();
    batches_.reset();
    values_.reset();
    if (text_) return seek_text(row);
    while (row_ < row) {
      if (in_batch_ >= batch_rows() && !read_batch()) return;
      const int64_t skipped = std::min(row - row_, batch_rows() - in_batch_);
      row_ += skipped;
      in_batch_ += skipped;
    }
  }

  bool next(ParquetRow& row) override {
    row.bytes.clear();
    row.problem.clear();
    row.is_record = !text_ || text_->is_json;
    if (text_ ? row_ >= rows_of_group() : in_batch_ >= batch_rows() && !read_batch()) return false;
    try {
      text_ ? read_text(row) : append_json(*values_, in_batch_, row.bytes);
    } catch (const BadValue& bad) {
      row.bytes.clear();
      const std::string& column = text_ ? text_name_ : bad.column;
      row.problem = fmt::format("the column \"{}\" holds JSON, and its value in this row {}", column, bad.problem);
    } catch (const parquet::ParquetException& problem) {
      fail_pages(problem.what());
    } catch (const std::runtime_error& problem) {
      fail_rows(problem.what());
    }
    ++row_;
    ++in_batch_;
    return true;
  }

 private:
  /// Sizes and places that contradict each other, which Arrow would trust.
  void check_footer(const parquet::FileMetaData& footer, int64_t bytes) {
    if (footer.is_encryption_algorithm_set()) {
      fail("columns of this Parquet file are encrypted. Write its rows to a file without encryption.");
    }
    int64_t rows = 0;
    for (int group = 0; group < footer.num_row_groups(); ++group) {
      const auto part = footer.RowGroup(group);
      const auto damaged = [&](const char* what) { fail_footer(fmt::format("row group {} {}", group, what)); };
      if (part->num_columns() != footer.num_columns()) damaged("has not as many columns as the file");
      if (part->num_rows() < 0 || part->num_rows() > std::numeric_limits<int64_t>::max() - rows) {
        damaged("has an impossible number of rows");
      }
      for (int column = 0; column < part->num_columns(); ++column) {
        const auto chunk = part->ColumnChunk(column);
        const int64_t begin = chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0
                                  ? std::min(chunk->dictionary_page_offset(), chunk->data_page_offset())
                                  : chunk->data_page_offset();
        const int64_t size = chunk->total_compressed_size();
        if (begin < 0 || size < 0 || begin > bytes || size > bytes - begin) {
          damaged("has a column that is not within the file");
        }
        if (chunk->total_uncompressed_size() < 0 || chunk->num_values() < 0) damaged("has a column of negative size");
      }
      rows += part->num_rows();
      rows_.push_back(part->num_rows());
    }
    if (rows != footer.num_rows()) {
      fail_footer(fmt::format("its row groups have {} rows, and the file should have {}", rows, footer.num_rows()));
    }
  }

  static void add_column(const SchemaField& field, const std::string& prefix, std::vector<ParquetColumn>& found) {
    const arrow::DataType& type = *field.field->type();
    const std::string name = prefix + field.field->name();
    found.push_back({name, type.ToString(), is_text_type(type), type.id() == arrow::Type::NA, !prefix.empty()});
    if (type.id() != arrow::Type::STRUCT) return;
    for (const SchemaField& child : field.children) add_column(child, name + ".", found);
  }

  /// The column of that name, or the field of a struct; a column whose own name has dots comes first.
  SelectedText find(const std::string& name) const {
    const std::vector<SchemaField>& fields = reader_->manifest().schema_fields;
    const auto is_it = [&](const SchemaField& field) { return field.field->name() == name; };
    const auto own = std::find_if(fields.begin(), fields.end(), is_it);
    if (own != fields.end()) return text_of(*own, *own);
    for (const SchemaField& field : fields) {
      if (const SchemaField* leaf = find_below(field, name)) return text_of(field, *leaf);
    }
    fail(fmt::format("there is no column \"{}\".", name));
  }

  SelectedText text_of(const SchemaField& column, const SchemaField& leaf) const {
    const arrow::DataType& type = *leaf.field->type();
    const bool is_null = type.id() == arrow::Type::NA;
    const bool is_stored_as_text =
        leaf.is_leaf() && reader_->parquet_reader()->metadata()->schema()->Column(leaf.column_index)->physical_type() ==
                              parquet::Type::BYTE_ARRAY;
    if (!is_null && !is_stored_as_text) {
      fail_footer(fmt::format("its column {} is to be text and holds no texts", column.field->name()));
    }
    return {column.field->name(), &leaf, is_null, is_json_type(type)};
  }

  static const SchemaField* find_below(const SchemaField& field, std::string_view name) {
    const std::string& own = field.field->name();
    if (name == own) return &field;
    if (!name.starts_with(own + ".") || field.field->type()->id() != arrow::Type::STRUCT) return nullptr;
    for (const SchemaField& child : field.children) {
      if (const SchemaField* found = find_below(child, name.substr(own.size() + 1))) return found;
    }
    return nullptr;
  }

  int64_t rows_of_group() const { return rows_[static_cast<size_t>(group_)]; }

  void seek_text(int64_t row) {
    row_ = row;
    if (text_->is_null || rows_of_group() == 0) return;
    bool is_there = false;
    try {
      group_reader_ = reader_->parquet_reader()->RowGroup(static_cast<int>(group_));
      texts_.emplace(group_reader_->Column(text_->leaf->column_index));
      is_there = row == 0 || texts_->skip(row);
    } catch (const parquet::ParquetException& problem) {
      fail_pages(problem.what());
    }
    if (!is_there) fail_rows(few_rows());
  }

  void read_text(ParquetRow& row) {
    std::optional<std::string_view> text;
    if (texts_ && !texts_->next(text)) throw std::runtime_error(few_rows());
    if (!text) {
      row.problem = fmt::format("the column \"{}\" is null in this row", text_name_);
    } else if (text_->is_json) {
      row.bytes = '{';
      append_json_text(text_name_, row.bytes);
      row.bytes += ':';
      append_json_value(*text, row.bytes);
      row.bytes += '}';
    } else {
      row.bytes = *text;
    }
  }

  std::string few_rows() const {
    return fmt::format("they end before the {} rows that the footer says", rows_of_group());
  }

  int64_t batch_rows() const { return values_ ? values_->length() : 0; }

  /// Reads the next rows of the row group; false at its end.
  bool read_batch() {
    in_batch_ = 0;
    values_.reset();
    const int64_t rows = rows_of_group();
    if (row_ >= rows) return false;
    if (leaves_.empty()) fail("it has no column that could be read.");
    std::shared_ptr<arrow::RecordBatch> batch;
    try {
      reader_->set_batch_size(rows_of_batch_);  // holds for the next batch of a reader that is open, too
      if (!batches_) {
        auto opened = reader_->GetRecordBatchReader({static_cast<int>(group_)}, leaves_);
        if (!opened.ok()) fail_pages(opened.status().message());
        batches_ = std::move(*opened);
      }
      const arrow::Status status = batches_->ReadNext(&batch);
      if (!status.ok()) fail_pages(status.message());
    } catch (const parquet::ParquetException& problem) {
      fail_pages(problem.what());
    }
    const int64_t found = batch ? batch->num_rows() : 0;
    if (found == 0) fail_rows(few_rows());
    if (row_ + found > rows) fail_rows(fmt::format("they are more than the {} that the footer says", rows));
    if (const arrow::Status valid = batch->Validate(); !valid.ok()) fail_rows(words_of(valid.message()));
    auto structs = batch->ToStructArray();
    if (!structs.ok()) fail_rows(words_of(structs.status().message()));
    values_ = *structs;
    const int64_t each = arrow::util::TotalBufferSize(*batch) / found + 1;
    rows_of_batch_ =
        std::clamp<int64_t>(kBatchBytes / each, 1, std::min(kMostBatchRows, kBatchGrowth * rows_of_batch_));
    return true;
  }

  [[noreturn]] void fail_rows(const std::string& what) const {
    fail(fmt::format("row group {}, column{} {}: its rows from {} on are damaged: {}. {}", group_,
                     columns_.size() > 1 ? "s" : "", names_, row_, what, kRemedy));
  }

  /// Throws with the column whose pages are damaged: each is read by itself until one fails in the same way.
  [[noreturn]] void fail_pages(const std::string& message) {
    const std::string what = words_of(message);
    const auto found = std::find_if(columns_.begin(), columns_.end(),
                                    [&](const SchemaField* one) { return columns_.size() > 1 && is_damaged(*one); });
    const bool is_known = found != columns_.end();
    fail(fmt::format("row group {}, column{} {}: a page at or after row {} cannot be read: {}. {}", group_,
                     is_known || columns_.size() < 2 ? "" : "s", is_known ? (*found)->field->name() : names_, row_,
                     what, kRemedy));
  }

  bool is_damaged(const SchemaField& column) {
    std::vector<int> leaves;
    add_leaves(column, leaves);
    try {
      auto batches = reader_->GetRecordBatchReader({static_cast<int>(group_)}, leaves);
      if (!batches.ok()) return true;
      std::shared_ptr<arrow::RecordBatch> batch;
      do {
        if (!(*batches)->ReadNext(&batch).ok()) return true;
      } while (batch);
    } catch (const parquet::ParquetException&) {
      return true;
    }
    return false;
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int64_t> rows_;
  std::string names_;            // of the columns that are read, for messages
  int64_t group_ = 0, row_ = 0;  // of the next row

  // Of a text.
  std::optional<SelectedText> text_;
  std::string text_name_;                                  // as it was asked for
  std::shared_ptr<parquet::RowGroupReader> group_reader_;  // outlives texts_
  std::optional<TextColumn> texts_;                        // of the row group; none for a column of nulls

  // Of rows as records.
  std::vector<const SchemaField*> columns_;
  std::vector<int> leaves_;  // of all columns
  int64_t rows_of_batch_ = 1;
  int64_t in_batch_ = 0;  // the next row, in values_
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::Array> values_;  // the rows of the batch that was read last, as structs
};

}  // namespace
}  // namespace titan

/// See OpenParquetFile.
extern "C" __attribute__((visibility("default"))) titan::ParquetFile* titan_open_parquet(const std::string& path) {
  return new titan::ArrowFile(path);
}
