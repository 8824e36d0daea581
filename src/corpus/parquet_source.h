// Documents from Parquet files: the text of a column, or the whole row as a record. A position is a row group (`byte`)
// and the number of the row in it, from 1 (`line`); reading again from there unpacks the row group up to the row.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "file_source.h"
#include "titan/corpus/parquet_file.h"

namespace titan {

class ParquetSource : public FileSource {
 public:
  using FileSource::FileSource;

  bool next_raw(RawDocument& raw) override;
  std::string place_of(const SourcePosition& start) const override;
  std::string format() const override;
  uint64_t fingerprint() const override;
  std::string order() const override;

  /// Reads the footers of all files.
  std::optional<int64_t> count_documents() override;
  /// Keeps the rows of the two row groups that were read last: `blocks` says which documents are cheap then.
  bool read(int64_t index, Document& document) override;
  std::vector<int64_t> blocks() override;

 private:
  struct Group {
    size_t file = 0;
    int64_t group = 0;
    int64_t first = 0;  ///< document
    int64_t rows = 0;
  };
  struct Rows {
    const Group* of = nullptr;
    std::vector<ParquetRow> rows;
  };
  struct OpenFile {
    size_t file = 0;
    std::unique_ptr<ParquetFile> opened;
  };

  void close() override { current_.reset(); }
  std::string remedy_for_record() const override;

  bool reads_text() const { return !options_.chat && !options_.holds_ids; }
  std::unique_ptr<ParquetFile> open(size_t file) const;
  void open_current();
  void check_columns(const std::filesystem::path& file, const std::vector<ParquetColumn>& all) const;
  void fill(RawDocument& raw, ParquetRow&& row) const;
  Rows& rows_of(const Group& group);
  ParquetFile& opened_again(size_t file);
  [[noreturn]] void refuse_changed(size_t file) const;

  std::unique_ptr<ParquetFile> current_;  // file position_.file, if open

  // For random access, filled on demand: all row groups with rows, the rows of two of them, and the files that were
  // opened last, the latest at the end.
  std::vector<Group> groups_;
  std::optional<int64_t> documents_;
  std::array<Rows, 2> kept_;
  std::vector<OpenFile> open_files_;
};

}  // namespace titan
