// A file that is written from front to back and can be continued by a later process. Private to data.
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
#include "titan/data/document_source.h"
#include "titan/data/token_file.h"

namespace titan {

class OutputFile {
 public:
  /// Opens or makes `path` and cuts it to its first `keep` bytes. Throws Error(storage) with the system's reason, as
  /// all of these do.
  OutputFile(const std::filesystem::path& path, int64_t keep);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size);
  /// Returns once everything written is on the disk.
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Renames, and syncs the folder.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// The .bin file that `data tokenize` makes, while it grows: ids, ends of documents, checksums of blocks, and a note of
// how far it is complete, from which a killed command resumes. Private to data.

/// How far the output has come; everything before is on the disk.
struct TokenizeProgress {
  SourcePosition next;
  int64_t documents = 0, tokens = 0, bad_records = 0, invalid_utf8 = 0, text_bytes = 0;
};

class GrowingFile {
 public:
  /// `identity`: fields, by name, that must match for an earlier run to be resumed.
  /// `sizes`: of the corpus's files, by name, to say which of them changed.
  GrowingFile(std::filesystem::path bin, const nlohmann::json& identity, const nlohmann::json& sizes);

  /// Resumes what an earlier run left, or begins; locks it against other processes. Throws Error(bad_config) when
  /// another process is at it, the file is there already or what was left is of another corpus or tokenizer
  /// (`overwrite`: it is removed instead).
  TokenizeProgress open(bool overwrite, int64_t token_bytes);
  /// A warning for the caller to print; usually empty.
  const std::string& warning() const { return warning_; }

  void write_ids(std::string_view bytes);
  void write_end(int64_t tokens);
  /// Returns once everything up to here is on the disk and noted.
  void save(const TokenizeProgress& progress);
  /// The end: name and index.
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
  std::string block_;  // the ids since the last whole block
  std::unique_ptr<OutputFile> ids_, ends_, hashes_;
};

}  // namespace titan
