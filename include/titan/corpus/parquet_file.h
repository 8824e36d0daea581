// Rows of a Parquet file, as sources of documents ask for them. The code that answers is a shared object of its own
// next to the program, libtitan_parquet.so (src/parquet), opened when the first Parquet file is met: Arrow is 60 MB,
// and a run on text needs none of it. Knows nothing of Arrow. The shared object uses no symbol of the program, so it
// throws exceptions of the standard library only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace titan {

/// A column, or a field of a struct column by its path with dots.
struct ParquetColumn {
  std::string name;
  std::string type;       ///< in Arrow's words: "string", "list<element: int32>"
  bool is_text = false;   ///< also values in JSON, which may be texts
  bool is_null = false;   ///< of the type null: all its values are missing
  bool is_inner = false;  ///< a field of a struct column
};

/// What is read of each row.
struct ParquetRequest {
  /// The column whose text is read, one of text or of nulls; empty: the row is read as a JSON object.
  std::string text = {};
  /// Of an object: the columns in it; empty: all but `left_out`.
  std::vector<std::string> columns = {};
  std::vector<std::string> left_out = {};
};

struct ParquetRow {
  std::string bytes;       ///< a text as it is stored, which may be malformed UTF-8, or a JSON object
  bool is_record = false;  ///< a JSON object; of a column of JSON, its only member is the column's value
  std::string problem;     ///< of a bad record, as the end of a sentence; then there are no bytes
};

/// An open file. Its functions throw std::runtime_error, whose text says what is wrong with the file, without its name.
/// For one thread at a time; it starts none.
class ParquetFile {
 public:
  virtual ~ParquetFile() = default;

  /// Number of rows of each row group.
  virtual const std::vector<int64_t>& rows() const = 0;
  virtual std::vector<ParquetColumn> columns() const = 0;
  /// Call once, before the first `seek`. Every name must be that of a column.
  virtual void select(const ParquetRequest& request) = 0;
  /// The next row read is row `row` of row group `group`. Call before the first `next`.
  virtual void seek(int64_t group, int64_t row) = 0;
  /// Reads the next row of the row group; false at its end. Holds a page of each column and rows of about 4 MB, not the
  /// row group.
  virtual bool next(ParquetRow& row) = 0;
};

/// The type of the function `titan_open_parquet`, which libtitan_parquet.so exports.
using OpenParquetFile = ParquetFile* (*)(const std::string& path);

std::filesystem::path parquet_library_path();

/// Throws Error(bad_data) for what Arrow would report in the words of its own code: a file of another kind, one that
/// ends early or is encrypted. Does not need the library.
void check_parquet_ends(const std::filesystem::path& path);

/// Opens the library at the first call, then the file. Throws Error(not_started) if the library is missing, and
/// Error(bad_data) as check_parquet_ends does, or for a damaged footer.
std::unique_ptr<ParquetFile> open_parquet_file(const std::filesystem::path& path);

}  // namespace titan
