// Sources of documents: files of text or of ids on disk, read one document at a time. A position identifies a document,
// so a stopped stream can resume.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/corpus/corpus_record.h"
#include "titan/corpus/token_file.h"
#include "titan/text/chat.h"

namespace titan {

class Tokenizer;

/// The start of a document. Only the source that created it interprets the numbers.
struct SourcePosition {
  int64_t document = 0;  ///< ordinal within one pass over the source
  int64_t file = 0;      ///< index in the sorted list of files
  int64_t byte = 0;      ///< offset in that file; of Parquet: the row group
  int64_t line = 1;      ///< line number at that offset, for messages; of Parquet: the row in its group, from 1

  bool operator==(const SourcePosition&) const = default;
};

struct Document {
  std::string text;  ///< valid UTF-8
  /// Instead of text: the document's ids as they are to be read, with BOS and EOS if its maker wrote them. Valid as
  /// long as the source.
  std::optional<TokenView> tokens;
  /// Instead of text: an encoded conversation.
  std::optional<EncodedChat> chat;
  SourcePosition start;
};

struct SourceCounters {
  int64_t documents = 0;
  int64_t bad_records = 0;   ///< records skipped (BadRecord::skip)
  int64_t invalid_utf8 = 0;  ///< malformed sequences replaced by U+FFFD
};

/// The entries of the index of one Megatron-LM file, by their number. Megatron-LM's writer calls them sequences, its
/// GPTDataset documents. A document of the index may have several.
class EntryIndex {
 public:
  virtual ~EntryIndex() = default;

  /// Ids in each entry: a copy, since they are not aligned in the file.
  virtual std::vector<int32_t> lengths() const = 0;
  /// The ids of an entry, valid as long as the source. Throws Error(bad_data) as `read` does.
  virtual TokenView entry(int64_t index) = 0;
};

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  /// Reads the next document; false at the end of a pass (`seek({})` starts the next one). Throws Error(bad_data) with
  /// file and line.
  virtual bool next(Document& document) = 0;

  /// The next document read is the one at `start`; `{}` is the first one.
  virtual void seek(const SourcePosition& start) = 0;

  /// The next document read is the first of pass `epoch` (0, 1, …), for sources whose passes differ.
  virtual void begin_pass(int64_t epoch) {
    static_cast<void>(epoch);
    seek({});
  }

  /// Documents in one pass, including bad records; nothing without random access (a compressed file). May read the
  /// whole corpus once.
  virtual std::optional<int64_t> count_documents() { return std::nullopt; }

  /// Reads document `index` of the pass; false for a skipped bad record. Does not change the position of `next`.
  virtual bool read(int64_t index, Document& document);

  /// Sizes of consecutive runs of documents, all of them, of which two can be read in any order once each was read
  /// from its beginning; empty if every document can be read by itself. May read the files' indexes.
  virtual std::vector<int64_t> blocks() { return {}; }

  /// The entries of a source that is a single file of Megatron-LM; else null.
  virtual EntryIndex* entry_index() { return nullptr; }

  /// Throws Error(bad_data) if the tokenizer does not match: the documents are ids of another vocabulary, or are text
  /// that it cannot encode.
  virtual void check_tokenizer(const Tokenizer& tokenizer) const;

  /// What is being read, for the error about a stalled read. May be called while another thread is inside `next`.
  virtual std::string reading() const = 0;

  /// For messages: "corpus.jsonl", "text/ (12 files, 3.1 MiB)".
  virtual std::string description() const = 0;

  /// Where a document begins, for messages: "corpus.jsonl:12"; the description where a position does not say the file.
  /// `start` is that of a document of this source. May be called while another thread is inside `next`.
  virtual std::string place_of(const SourcePosition& start) const {
    static_cast<void>(start);
    return description();
  }

  /// What kind of files these are, in words: "JSON records", "Parquet, 3 row groups: text (string)". May open a file.
  virtual std::string format() const { return {}; }

  /// A hash of the files' names and sizes (.bin: their counts and vocabulary) and of the settings that determine the
  /// documents. It does not change if only the contents change; CorpusRecord detects that.
  virtual uint64_t fingerprint() const = 0;

  /// The files, with their sizes when the source was opened.
  virtual CorpusFiles file_sizes() const { return {}; }
  /// The other settings that determine the documents and their order, in words.
  virtual std::string order() const { return {}; }

  /// Totals since the source was opened, over all passes and seeks.
  const SourceCounters& counters() const { return counters_; }

  /// Warnings collected since the last call; the caller prints them.
  std::vector<std::string> take_notices();

 protected:
  void notice(std::string text) { notices_.push_back(std::move(text)); }

  SourceCounters counters_;

 private:
  std::vector<std::string> notices_;
};

/// What to do with a line of a JSONL file that is invalid JSON, lacks the text field, or is not a conversation.
enum class BadRecord { error, skip };

struct DatasetOptions {
  std::string dataset = "text";     ///< text, nanogpt, c4, c4_test, c4_validation or chat
  std::string path = {};            ///< a file, a folder or a glob
  std::string text_field = "text";  ///< field of JSONL records, column of Parquet files
  BadRecord bad_record = BadRecord::error;
  /// A new order in every pass: a permutation by (seed, pass, index). Nothing: the corpus's own order.
  std::optional<uint64_t> shuffle_seed = {};
  /// torchtitan's split: this source returns only the documents of rank `split_rank`.
  int64_t split_ranks = 1, split_rank = 0;
  /// For "chat": encodes the conversations.
  std::shared_ptr<const ChatTemplate> chat = {};
  /// For "chat": fields of records and of messages that are read as if they were not there.
  std::vector<std::string> ignore_fields = {};
  bool holds_ids = false;  ///< `text_field` holds lists of ids, for `data tokenize --ids`
  /// The run's, used while the source is opened: ids that come without a vocabulary must be in its vocabulary, and its
  /// end-of-text id ends documents of "nanogpt". nullptr: any ids are returned.
  const Tokenizer* tokenizer = nullptr;
};

/// PREFIX.bin if `prefix` names a corpus as Megatron-LM does: PREFIX.bin and PREFIX.idx are files, and PREFIX does not
/// exist or is a folder without files of a corpus, such as that of Megatron-LM's cache. Throws Error(bad_data) if it is
/// a folder with such files: it is not known which of the two is meant.
std::optional<std::filesystem::path> find_megatron_file(const std::string& prefix);

/// True if both paths (see DatasetOptions::path) lead to the same files. False also if one of them leads to none.
bool name_one_corpus(const std::string& path, const std::string& other);

/// Valid values of `DatasetOptions::dataset` for text and ids; case-insensitive.
std::vector<std::string> dataset_names();

/// Opens the source. Throws Error(bad_data): unknown name, missing path, no data, unsupported format, or a corpus that
/// cannot be shuffled.
std::unique_ptr<DocumentSource> open_dataset(const DatasetOptions& options);

}  // namespace titan
