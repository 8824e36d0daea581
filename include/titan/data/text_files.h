// Documents from .txt and .jsonl files on disk, in the sorted order of their paths.
// A .txt file is one document (a very large one is cut, see kLargestDocument); a .jsonl file holds one per line.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/data/buffered_file.h"
#include "titan/data/document_source.h"

namespace titan {

struct TextFiles {
  std::vector<std::filesystem::path> files;  ///< sorted by path
  int64_t left_out = 0;                      ///< files of other kinds in a folder, hidden ones not counted
  std::string left_out_example;              ///< the name of one of them
};

/// The files that `path` names: itself, all supported files in and below a folder, or what a glob (* ? [) matches.
/// Throws Error(bad_data): nothing there, nothing supported in it, only empty files, a format that is not built yet.
TextFiles find_text_files(const std::string& path);

enum class TextForm { none, whole, records };
/// How a file is read, by its name whatever the case: .txt as a whole, .jsonl and .json record by record.
TextForm text_form(const std::filesystem::path& path);

class TextFileSource : public DocumentSource {
 public:
  /// A larger .txt file becomes several documents, cut at the last blank line, else line, else character before the
  /// bound: the first batch need not wait until gigabytes are encoded.
  static constexpr size_t kLargestDocument = size_t{4} << 20;

  TextFileSource(std::string path, std::string text_field, BadRecord bad_record,
                 size_t largest_document = kLargestDocument);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  uint64_t fingerprint() const override;

 private:
  bool next_section(Document& document);
  bool next_record(Document& document);
  std::optional<std::string> parse_record(std::string_view line);
  void finish(Document& document, size_t bytes, int64_t lines);

  std::string path_;
  std::string text_field_;
  BadRecord bad_record_;
  size_t largest_document_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;

  SourcePosition position_;                // of the next document
  std::unique_ptr<BufferedFile> current_;  // file position_.file, once opened
  std::atomic<int64_t> reading_file_{0};
};

}  // namespace titan
