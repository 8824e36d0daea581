// Documents from .txt and .jsonl files on disk, compressed or not, in the sorted order of their paths. A .txt file is
// one document (a very large one is split, see kLargestDocument); a .jsonl file has one per line, or is one JSON array
// of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "file_source.h"

namespace titan {

class FileReader;

class TextFileSource : public FileSource {
 public:
  /// A larger .txt file becomes several documents, split at the last blank line (else line, else character) before this
  /// size, so that the first batch does not wait for the encoding of gigabytes.
  static constexpr size_t kLargestDocument = size_t{4} << 20;

  TextFileSource(const std::string& path, std::string text_field, BadRecord bad_record,
                 size_t largest_document = kLargestDocument);
  /// Reads the files that `options.path` names, or some of them.
  TextFileSource(DatasetOptions options, TextFiles files, size_t largest_document = kLargestDocument);
  ~TextFileSource() override;

  bool next_raw(RawDocument& raw) override;
  std::string place_of(const SourcePosition& start) const override;
  std::string format() const override;
  uint64_t fingerprint() const override;
  std::string order() const override;

  std::optional<int64_t> count_documents() override;
  bool read(int64_t index, Document& document) override;

 private:
  void close() override;
  std::string remedy_for_record() const override;
  std::string hint(size_t file, const std::string& problem) const override;

  void open_current();
  bool next_section(RawDocument& raw);
  bool next_record(RawDocument& raw);
  bool next_element(RawDocument& raw);
  void find_documents(size_t file);
  void find_elements(size_t file, BufferedFile& bytes);

  size_t largest_document_;
  std::unique_ptr<BufferedFile> current_;  // file position_.file, if open
  bool is_array_ = false;                  // its records are the elements of one JSON array

  // For random access, filled on demand: where every document begins, by file, and the file read last.
  std::vector<std::vector<int64_t>> begins_;
  std::vector<bool> arrays_;    // by file: its records are elements of an array
  std::vector<int64_t> first_;  // first document of each file
  std::optional<int64_t> documents_;
  std::unique_ptr<FileReader> random_;
  size_t random_file_ = 0;
};

}  // namespace titan
