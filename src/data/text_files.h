// One line of a .jsonl file → its text, or its ids. Pure functions, so that several threads can read records side by
// side.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file_reader.h"
#include "titan/data/document_source.h"

namespace titan {

class Tokenizer;

struct RecordText {
  std::optional<std::string> text;  ///< valid UTF-8; nothing when the record is bad; "" of a conversation
  std::string problem;              ///< what is wrong with a bad one, as the end of a sentence about it
  int64_t invalid_utf8 = 0;         ///< malformed sequences replaced by U+FFFD
  std::optional<EncodedChat> chat = {};
};

/// The text under the key `field` of the JSON object in `line`; of several, the last. No value but that one is kept,
/// however large or deep the record.
RecordText read_record(std::string_view line, const std::string& field);

/// The conversation in `line`, encoded: a list of messages (role, content) under the key "messages", or the strings
/// "prompt" and "completion" of a user and the assistant. Content is a string, or a list of parts of which each is
/// text.
RecordText read_conversation(std::string_view line, const ChatTemplate& chat);

/// What is wrong with a line that is no JSON, with the reason where it can be seen.
std::string describe_no_json(std::string_view line);

/// Appends the ids in the list under the key `field`, as a document of `vocabulary`: with its begin- and end-of-text
/// ids before and after where they are not there already; of several lists, the last. Malformed text in other fields is
/// no matter. Returns what is wrong with a bad record, for which nothing is appended; nothing for a good one.
std::string read_ids(std::string_view line, const std::string& field, const Tokenizer& vocabulary,
                     std::vector<int32_t>& ids);

// Documents from .txt and .jsonl files on disk, packed or not, in the sorted order of their paths.
// A .txt file is one document (a very large one is cut, see kLargestDocument); a .jsonl file holds one per line.

class FileReader;

struct TextFiles {
  std::vector<std::filesystem::path> files;  ///< sorted by path
  int64_t left_out = 0;                      ///< files of other kinds in a folder, hidden ones not counted
  std::string left_out_example;              ///< the name of one of them
};

/// The files that `path` names: itself, all supported files in and below a folder, or what a glob (* ? [) matches.
/// Links to folders are followed. Throws Error(bad_data): nothing there, nothing supported in it, only empty files, a
/// format that is not read here, a link that leads back to a folder above it.
TextFiles find_text_files(const std::string& path);

enum class TextForm { none, whole, records, ids };
/// How a file is read, by its name whatever the case: .txt as a whole, .jsonl and .json record by record; each may be
/// packed (.gz, .zst). A .bin file holds ids.
TextForm text_form(const std::filesystem::path& path);

/// One document as it is in its file.
struct RawDocument {
  std::string bytes;  ///< a section of a .txt file, or the line of a record
  TextForm form = TextForm::none;
  bool too_long = false;  ///< a line of more than kLongestLine bytes, which were not kept
  SourcePosition start;
};

/// The text of a document, or with `chat` its conversation; nothing where a record is bad. May be called from several
/// threads.
RecordText read_text(RawDocument&& raw, const std::string& text_field, const ChatTemplate* chat = nullptr);

class TextFileSource : public DocumentSource {
 public:
  /// A larger .txt file becomes several documents, cut at the last blank line, else line, else character before the
  /// bound: the first batch need not wait until gigabytes are encoded.
  static constexpr size_t kLargestDocument = size_t{4} << 20;
  /// A longer line of a .jsonl file is a bad record: no text that a person wrote, and it would fill the memory.
  static constexpr size_t kLongestLine = size_t{64} << 20;

  TextFileSource(const std::string& path, std::string text_field, BadRecord bad_record,
                 size_t largest_document = kLargestDocument);
  /// With the files that `path` names, or some of them. With `chat` their records are conversations.
  TextFileSource(std::string path, TextFiles files, std::string text_field, BadRecord bad_record,
                 size_t largest_document = kLargestDocument, std::shared_ptr<const ChatTemplate> chat = {});

  ~TextFileSource() override;

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  std::string order() const override;
  std::string growth_obstacle(const CorpusGrowth& growth, const SourcePosition& at) const override;

  std::optional<int64_t> count_documents() override;
  bool read(int64_t index, Document& document) override;

  /// `next` in two halves, for callers that read texts on several threads: the next document as it is there (false
  /// at the end of a pass), then, in the same order, what became of each.
  bool next_raw(RawDocument& raw);
  /// Counts it; a bad record is an Error(bad_data) with file and line, or is skipped (false), as was asked for.
  bool accept(const SourcePosition& start, const RecordText& read);

  /// The position of the document that `next` or `next_raw` would give.
  const SourcePosition& position() const { return position_; }
  /// Bytes of all files as they are on disk.
  int64_t file_bytes() const;

 private:
  void check_size(size_t file) const;
  bool next_section(RawDocument& raw);
  bool next_record(RawDocument& raw);
  void find_documents(size_t file);
  /// Reads `raw` into `document`; false for a bad record that is skipped.
  bool take(RawDocument&& raw, Document& document);

  std::string path_;
  std::string text_field_;
  BadRecord bad_record_;
  size_t largest_document_;
  std::shared_ptr<const ChatTemplate> chat_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;

  SourcePosition position_;                // of the next document
  std::unique_ptr<BufferedFile> current_;  // file position_.file, once opened
  std::atomic<int64_t> reading_file_{0};

  // For reading in any order, once asked for: where every document begins, by file, and the file read last.
  std::vector<std::vector<int64_t>> begins_;
  std::vector<int64_t> first_;  // document of each file
  std::optional<int64_t> documents_;
  std::unique_ptr<FileReader> random_;
  size_t random_file_ = 0;
};

}  // namespace titan
