// libtitan_parquet.so: rows of Parquet files, read with Arrow (titan/corpus/parquet_file.h) by one thread, in
// batches of rows of about kBatchBytes. Reading values one by one (parquet::ByteArrayReader) takes less memory, but
// Arrow 26 then skips a whole run of dictionary indices if one is out of range: later rows get other rows' texts.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "titan/corpus/parquet_file.h"
#include "values.h"

namespace titan {
namespace {

using parquet::arrow::SchemaField;

/// Bytes of decoded rows to hold at once. The footer has only compressed sizes, so a batch's size is known after
/// decoding: the first has one row, each next one up to kBatchGrowth times as many. Rows may suddenly be larger:
/// kMostBatchRows bounds that.
constexpr int64_t kBatchBytes = int64_t{4} << 20;
constexpr int64_t kMostBatchRows = 256;
constexpr int64_t kBatchGrowth = 4;
/// Compressed bytes that are read at once, of each column: many for a network file system, where every read waits, and
/// few beside a batch.
constexpr int64_t kReadBytes = int64_t{1} << 20;

/// Bytes of an array's rows, without dictionaries: all rows share one, whatever the batch.
int64_t bytes_of(const arrow::ArrayData& data) {
  int64_t bytes = 0;
  for (const auto& buffer : data.buffers) bytes += buffer ? buffer->size() : 0;
  for (const auto& child : data.child_data) bytes += bytes_of(*child);
  return bytes;
}

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

/// What is read of a row: a column, and for a field of a struct the way to it.
struct Selected {
  const SchemaField* column = nullptr;
  std::vector<int> path;  // indices of fields below the column
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
      text_name_ = request.text;
      selected_.push_back(find(request.text));
      const SchemaField* leaf = selected_[0].column;
      for (const int index : selected_[0].path) leaf = &leaf->children[static_cast<size_t>(index)];
      add_leaves(*leaf, leaves_);
      is_json_ = is_json_type(*leaf->field->type());
      return;
    }
    const auto holds = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const SchemaField& field : reader_->manifest().schema_fields) {
      const std::string& name = field.field->name();
      if (request.columns.empty() ? holds(request.left_out, name) : !holds(request.columns, name)) continue;
      selected_.push_back({&field, {}});
      add_leaves(field, leaves_);
    }
  }

  void seek(int64_t group, int64_t row) override {
    group_ = group;
    row_ = in_batch_ = 0;
    batches_.reset();
    values_.reset();
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
    row.is_record = !is_text() || is_json_;
    if (in_batch_ >= batch_rows() && !read_batch()) return false;
    try {
      is_text() ? read_text_of(row) : append_json(*values_, in_batch_, row.bytes);
    } catch (const BadValue& bad) {
      row.bytes.clear();
      const std::string& column = is_text() ? text_name_ : bad.column;
      row.problem = fmt::format("the column \"{}\" holds JSON, and its value in this row {}", column, bad.problem);
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
  Selected find(const std::string& name) const {
    for (const SchemaField& field : reader_->manifest().schema_fields) {
      if (field.field->name() == name) return {&field, {}};
    }
    for (const SchemaField& field : reader_->manifest().schema_fields) {
      std::vector<int> path;
      if (find_below(field, name, path)) return {&field, path};
    }
    fail(fmt::format("there is no column \"{}\".", name));
  }

  static bool find_below(const SchemaField& field, std::string_view name, std::vector<int>& path) {
    const std::string& own = field.field->name();
    if (name == own) return true;
    if (!name.starts_with(own + ".") || field.field->type()->id() != arrow::Type::STRUCT) return false;
    for (size_t i = 0; i < field.children.size(); ++i) {
      path.push_back(static_cast<int>(i));
      if (find_below(field.children[i], name.substr(own.size() + 1), path)) return true;
      path.pop_back();
    }
    return false;
  }

  bool is_text() const { return !text_name_.empty(); }

  int64_t rows_of_group() const { return rows_[static_cast<size_t>(group_)]; }

  void read_text_of(ParquetRow& row) const {
    if (is_json_ && !values_->IsNull(in_batch_)) {
      row.bytes = '{';
      append_json_text(text_name_, row.bytes);
      row.bytes += ':';
      append_json(*values_, in_batch_, row.bytes);
      row.bytes += '}';
    } else if (!read_text(*values_, in_batch_, row.bytes)) {
      row.problem = fmt::format("the column \"{}\" is null in this row", text_name_);
    }
  }

  int64_t batch_rows() const { return values_ ? values_->length() : 0; }

  /// Reads the next rows of the row group; false at its end.
  bool read_batch() {
    in_batch_ = 0;
    values_.reset();
    const int64_t rows = rows_of_group();
    if (row_ >= rows) {
      batches_.reset();  // has a page and a buffer for each column
      return false;
    }
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
    if (found == 0) fail_rows(fmt::format("they end before the {} rows that the footer says", rows));
    if (row_ + found > rows) fail_rows(fmt::format("they are more than the {} that the footer says", rows));
    if (const arrow::Status valid = batch->Validate(); !valid.ok()) fail_rows(words_of(valid.message()));
    values_ = values_of(*batch);
    const int64_t each = bytes_of(*values_->data()) / found + 1;
    rows_of_batch_ =
        std::clamp<int64_t>(kBatchBytes / each, 1, std::min(kMostBatchRows, kBatchGrowth * rows_of_batch_));
    return true;
  }

  /// What is read of each row: the text, or the row as a struct. Of a struct column only the selected field was read:
  /// it is the only child.
  std::shared_ptr<arrow::Array> values_of(const arrow::RecordBatch& batch) const {
    if (!is_text()) {
      auto structs = batch.ToStructArray();
      if (!structs.ok()) fail_rows(words_of(structs.status().message()));
      return *structs;
    }
    std::shared_ptr<arrow::Array> array = batch.column(0);
    for (size_t level = 0; level < selected_[0].path.size(); ++level) {
      auto inner = static_cast<const arrow::StructArray&>(*array).GetFlattenedField(0, arrow::system_memory_pool());
      if (!inner.ok()) fail_rows(words_of(inner.status().message()));
      array = *inner;
    }
    return array;
  }

  [[noreturn]] void fail_rows(const std::string& what) const {
    fail(fmt::format("row group {}, column{} {}: its rows from {} on are damaged: {}. {}", group_,
                     selected_.size() == 1 ? "" : "s", names_of(selected_), row_, what, kRemedy));
  }

  static std::string names_of(const std::vector<Selected>& selected) {
    std::string names;
    for (const Selected& one : selected) names += (names.empty() ? "" : ", ") + one.column->field->name();
    return names;
  }

  /// Throws with the column whose pages are damaged: each is read by itself until one fails in the same way.
  [[noreturn]] void fail_pages(const std::string& message) {
    const std::string what = words_of(message);
    std::vector<Selected> damaged = selected_;
    for (const Selected& one : selected_) {
      if (selected_.size() == 1 || !is_damaged(one)) continue;
      damaged = {one};
      break;
    }
    fail(fmt::format("row group {}, column{} {}: a page at or after row {} cannot be read: {}. {}", group_,
                     damaged.size() == 1 ? "" : "s", names_of(damaged), row_, what, kRemedy));
  }

  bool is_damaged(const Selected& one) {
    std::vector<int> leaves;
    add_leaves(*one.column, leaves);
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
  std::vector<Selected> selected_;
  std::vector<int> leaves_;  // of all that is selected
  std::string text_name_;    // of the only column, if texts are read
  bool is_json_ = false;     // whose values are JSON

  int64_t group_ = 0, row_ = 0;  // of the next row
  int64_t in_batch_ = 0;         // the same row, in values_
  int64_t rows_of_batch_ = 1;    // of the next batch
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::Array> values_;  // of the batch that was read last
};

}  // namespace
}  // namespace titan

/// See OpenParquetFile.
extern "C" __attribute__((visibility("default"))) titan::ParquetFile* titan_open_parquet(const std::string& path) {
  return new titan::ArrowFile(path);
}
