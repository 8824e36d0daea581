// An append-only file that a later process can continue. Private to corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "titan/base/filesystem.h"
#include "titan/corpus/document_source.h"
#include "titan/corpus/token_file.h"

namespace titan {

class OutputFile {
 public:
  /// Opens or creates `path` and truncates it to `keep` bytes. Like all methods, throws Error(storage) with the
  /// system's reason.
  OutputFile(const std::filesystem::path& path, int64_t keep);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size);
  /// Returns when all written data is on disk.
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Renames a file and syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// The .bin file of `data tokenize` during writing: ids, ends of documents, checksums of blocks, and a record of the
// progress, from which a killed command resumes. Private to corpus.

/// Progress of the output; all data before it is on disk.
struct TokenizeProgress {
  SourcePosition next;
  int64_t documents = 0, tokens = 0, bad_records = 0, invalid_utf8 = 0, text_bytes = 0;
};

class GrowingFile {
 public:
  /// `identity`: fields, by name, that must match for an earlier run to be resumed.
  /// `sizes`: sizes of the corpus's files, by name, to report which of them changed.
  GrowingFile(std::filesystem::path bin, const nlohmann::json& identity, const nlohmann::json& sizes);

  /// Resumes an earlier run or starts a new one; locks the file against other processes. Throws Error(bad_config) if
  /// another process is writing it, the file already exists, or the earlier run used another corpus or tokenizer (with
  /// `overwrite`, the old files are removed instead).
  TokenizeProgress open(bool overwrite, int64_t token_bytes);
  /// A warning for the caller to print; usually empty.
  const std::string& warning() const { return warning_; }

  void write_ids(std::string_view bytes);
  void write_end(int64_t tokens);
  /// Returns when all data up to `progress`, and `progress` itself, is on disk.
  void save(const TokenizeProgress& progress);
  /// Renames the file to its final name and writes the index.
  void finish(const TokenizeProgress& progress, TokenFileFacts facts);

 private:
  std::filesystem::path part(const char* what) const { return bin_.string() + what; }
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;
  void hold();
  void remove_all();
  void write_hash();
  std::optional<TokenizeProgress> read_progress(int64_t token_bytes) const;
  void check_identity(const nlohmann::json& note) const;
  std::string changed_file(const nlohmann::json& note) const;

  std::filesystem::path bin_;
  nlohmann::json identity_;
  nlohmann::json sizes_;
  std::optional<LockFile> lock_;
  std::string warning_;
  std::string block_;  // ids since the last complete block
  std::unique_ptr<OutputFile> ids_, ends_, hashes_;
};

}  // namespace titan
