// Converts one line of a .jsonl file to its text or its ids. Pure functions, so several threads can read records in
// parallel.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file_reader.h"
#include "titan/base/file_kind.h"
#include "titan/corpus/document_source.h"

namespace titan {

class Tokenizer;

struct RecordText {
  std::optional<std::string> text;  ///< valid UTF-8; nothing for a bad record; "" for a conversation
  std::string problem;              ///< of a bad record, as the end of a sentence
  int64_t invalid_utf8 = 0;         ///< malformed sequences replaced by U+FFFD
  std::optional<EncodedChat> chat = {};
  /// Of a conversation: fields that nothing reads and that are not known to be harmless.
  std::vector<std::string> unused = {};
};

/// The text in the field `field` of the JSON object in `line`; of duplicate keys, the last. Stores no other value, so
/// large or deep records are cheap.
RecordText read_record(std::string_view line, const std::string& field);

/// The encoded conversation in `line`, in one of these forms: "messages" (role, content) or ShareGPT's "conversations"
/// (from, value); "prompt" and "completion", each a text or a list of messages; Alpaca's "instruction", "input" and
/// "output". Fields named in `ignored` are read as if they were not there.
RecordText read_conversation(std::string_view line, const ChatTemplate& chat,
                             const std::vector<std::string>& ignored = {});

/// The problem of a line that is invalid JSON from the byte at `offset` on, with the cause if it can be determined.
std::string describe_no_json(std::string_view line, size_t offset);

/// Appends the ids of the list in the field `field` as a document of `vocabulary`: adds BOS and EOS unless they are
/// already there; of duplicate keys, the last. Invalid text in other fields is ignored. Returns the problem of a bad
/// record, for which nothing is appended; empty for a good one.
std::string read_ids(std::string_view line, const std::string& field, const Tokenizer& vocabulary,
                     std::vector<int32_t>& ids);

// Documents from .txt and .jsonl files on disk, compressed or not, in the sorted order of their paths. A .txt file is
// one document (a very large one is split, see kLargestDocument); a .jsonl file has one per line, or is one JSON array
// of them.

class FileReader;

struct TextFiles {
  std::vector<std::filesystem::path> files;  ///< sorted by path unless they are in_own_order
  int64_t left_out = 0;                      ///< files of other kinds in a folder, without hidden ones
  std::string left_out_example;              ///< name of one of them
  std::vector<std::string> notices = {};     ///< how the files were chosen
  bool in_own_order = false;                 ///< of a data set of the hub: the order of `datasets`
};

/// The files that `path` names: a file, all supported files in and below a folder, or the matches of a glob (* ? [).
/// Follows links to folders. Throws Error(bad_data): nothing there, no supported file, only empty files, an unsupported
/// format, or a link to a folder above it.
TextFiles find_text_files(const std::string& path);

/// Throws Error(bad_data) if the first bytes of a text file, unpacked, are of another kind than its name says.
void refuse_text_kind(FileKind kind, const std::filesystem::path& file);

enum class TextForm { none, whole, records, ids };
/// A file's format by its name, ignoring case: .txt as a whole, .jsonl and .json record by record; each may be
/// compressed (.gz, .zst). A .bin file holds ids.
TextForm text_form(const std::filesystem::path& path);

/// One document as stored in its file.
struct RawDocument {
  std::string bytes;  ///< a section of a .txt file, or a record's line
  TextForm form = TextForm::none;
  bool too_long = false;  ///< a record of more than kLongestLine bytes; its bytes are dropped
  std::string problem;    ///< of the place in the file, as the end of a sentence: then there are no bytes
  SourcePosition start;
};

/// How records become documents.
struct RecordRules {
  std::string text_field;                         ///< of records that are not conversations
  std::shared_ptr<const ChatTemplate> chat = {};  ///< the records are conversations
  std::vector<std::string> ignored = {};          ///< fields of conversations: see read_conversation
};

/// The text of a document, or its encoded conversation; no text for a bad record. Thread-safe.
RecordText read_text(RawDocument&& raw, const RecordRules& rules);

class TextFileSource : public DocumentSource {
 public:
  /// A larger .txt file becomes several documents, split at the last blank line (else line, else character) before this
  /// size, so that the first batch does not wait for the encoding of gigabytes.
  static constexpr size_t kLargestDocument = size_t{4} << 20;
  /// A longer line of a .jsonl file is a bad record: it is not human text and would exhaust the memory.
  static constexpr size_t kLongestLine = size_t{64} << 20;

  TextFileSource(const std::string& path, std::string text_field, BadRecord bad_record,
                 size_t largest_document = kLargestDocument);
  /// Reads the files that `path` names, or some of them.
  TextFileSource(std::string path, TextFiles files, RecordRules rules, BadRecord bad_record,
                 size_t largest_document = kLargestDocument);

  ~TextFileSource() override;

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  std::string order() const override;

  std::optional<int64_t> count_documents() override;
  bool read(int64_t index, Document& document) override;

  const RecordRules& rules() const { return rules_; }

  /// `next` in two halves, for callers that parse on several threads: next_raw returns the next raw document (false at
  /// the end of a pass); accept then takes the results in the same order.
  bool next_raw(RawDocument& raw);
  /// Counts the document; a bad record throws Error(bad_data) with file and line, or is skipped (false), as configured.
  bool accept(const SourcePosition& start, const RecordText& read);

  /// The position of the document that `next` or `next_raw` would return.
  const SourcePosition& position() const { return position_; }
  /// Total size of all files on disk.
  int64_t file_bytes() const;

 private:
  void check_size(size_t file) const;
  void open_current();
  bool next_section(RawDocument& raw);
  bool next_record(RawDocument& raw);
  bool next_element(RawDocument& raw);
  std::string place_of(const SourcePosition& start) const;
  void note_unused(const SourcePosition& start, const std::vector<std::string>& fields);
  void find_documents(size_t file);
  void find_elements(size_t file, BufferedFile& bytes);
  /// Parses `raw` into `document`; false for a skipped bad record.
  bool take(RawDocument&& raw, Document& document);

  std::string path_;
  RecordRules rules_;
  BadRecord bad_record_;
  size_t largest_document_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;

  SourcePosition position_;                // of the next document
  std::unique_ptr<BufferedFile> current_;  // file position_.file, if open
  bool is_array_ = false;                  // its records are the elements of one JSON array
  std::set<std::string> unused_;           // fields that were reported
  std::atomic<int64_t> reading_file_{0};

  // For random access, filled on demand: where every document begins, by file, and the file read last.
  std::vector<std::vector<int64_t>> begins_;
  std::vector<bool> arrays_;    // by file: its records are elements of an array
  std::vector<int64_t> first_;  // first document of each file
  std::optional<int64_t> documents_;
  std::unique_ptr<FileReader> random_;
  size_t random_file_ = 0;
};

}  // namespace titan
