// Documents from files whose contents are parsed, and what all kinds of them share: which files a corpus has, what a
// record says, what a bad one does. Converts one record to its text or its ids by pure functions, so several threads
// can read records in parallel.
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

// The files of a corpus, and their documents as stored.

/// Where a document is: the positions [begin, end) of a file, in bytes or ids.
struct DocumentRange {
  size_t file = 0;
  int64_t begin = 0;
  std::optional<int64_t> end = {};  ///< nothing: it ends with the file
};
/// Document `index` of a corpus. Of each file, `first` is the number of its first document, and `begins` says where
/// each of its documents begins.
DocumentRange find_document(int64_t index, const std::vector<int64_t>& first,
                            const std::vector<std::vector<int64_t>>& begins);

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

/// Warnings about `path`: files that are left out, and why.
std::vector<std::string> notices_of(const std::string& path, const TextFiles& files);

/// Throws Error(bad_data) if the first bytes of a text file, unpacked, are of another kind than its name says.
void refuse_text_kind(FileKind kind, const std::filesystem::path& file);

enum class TextForm { none, whole, records, ids, parquet };
/// A file's format by its name, ignoring case: .txt as a whole, .jsonl, .ndjson and .json record by record; each may be
/// compressed (.gz, .zst). A .bin or .ds file holds ids; .parquet.
TextForm text_form(const std::filesystem::path& path);

/// One document as stored in its file.
struct RawDocument {
  std::string bytes;               ///< a section of a .txt file, a record's line, a row's text or the row as a record
  TextForm form = TextForm::none;  ///< `records`: the bytes are a JSON object
  bool too_long = false;           ///< a record of more than kLongestLine bytes; its bytes are dropped
  std::string problem;             ///< of the place in the file, as the end of a sentence: then there are no bytes
  SourcePosition start;
};

/// The text of a document, or its encoded conversation; no text for a bad record. Thread-safe.
RecordText read_text(RawDocument&& raw, const DatasetOptions& options);

/// A longer record is a bad one: it is not human text and would exhaust the memory.
inline constexpr size_t kLongestLine = size_t{64} << 20;

/// Documents of several files, in order. A position has the index of the file; the rest of it is the subclass's.
class FileSource : public DocumentSource {
 public:
  /// Of the options, the order and the split are the caller's; `path` is the user's name for the files, for messages.
  FileSource(DatasetOptions options, TextFiles files);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  CorpusFiles file_sizes() const override;

  const DatasetOptions& options() const { return options_; }

  /// `next` in two halves, for callers that parse on several threads: next_raw returns the next raw document (false at
  /// the end of a pass); accept then takes the results in the same order.
  virtual bool next_raw(RawDocument& raw) = 0;
  /// Counts the document; a bad record throws Error(bad_data) with its place, or is skipped (false), as configured.
  bool accept(const SourcePosition& start, const RecordText& read);

  /// The position of the document that `next` or `next_raw` would return.
  const SourcePosition& position() const { return position_; }
  /// Total size of all files on disk.
  int64_t file_bytes() const;

 protected:
  /// Closes what is open: `position_` is another one.
  virtual void close() = 0;
  /// What may be done about a bad record, beside leaving out such records.
  virtual std::string remedy_for_record() const = 0;
  /// More about the problem of a record of this file; usually nothing.
  virtual std::string hint(size_t file, const std::string& problem) const;

  /// Throws Error(bad_data) if the file shrank since the corpus was opened.
  void check_size(size_t file) const;
  /// Parses `raw` into `document`; false for a skipped bad record.
  bool take(RawDocument&& raw, Document& document);
  /// "FIELDS\nNAME SIZE\n…", to be hashed for a fingerprint.
  std::string facts(const std::string& fields) const;

  DatasetOptions options_;
  std::vector<std::filesystem::path> files_;
  std::vector<int64_t> sizes_;
  SourcePosition position_;  // of the next document
  std::atomic<int64_t> reading_file_{0};

 private:
  void note_unused(const SourcePosition& start, const std::vector<std::string>& fields);

  std::set<std::string> unused_;  // fields that were reported
};

/// Opens files that are to be parsed, all of text or all Parquet. Throws Error(bad_data) for files of ids, and
/// Error(bad_config) if no field is named.
std::unique_ptr<FileSource> open_file_source(const DatasetOptions& options, TextFiles files);

}  // namespace titan
