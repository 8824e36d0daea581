// Where documents come from, one at a time: files of text or of ids on disk.
// A document can be found again from its position alone, which is how a stopped stream is taken up.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/data/chat.h"
#include "titan/data/corpus_record.h"
#include "titan/data/token_file.h"

namespace titan {

class Tokenizer;

/// Where a document begins. Only the source that made it reads meaning into the numbers.
struct SourcePosition {
  int64_t document = 0;  ///< ordinal within one pass over the source
  int64_t file = 0;      ///< index in the sorted list of files
  int64_t byte = 0;      ///< offset in that file
  int64_t line = 1;      ///< line number at that offset, for messages

  bool operator==(const SourcePosition&) const = default;
};

struct Document {
  std::string text;  ///< valid UTF-8
  /// Instead of a text: the document's ids, with what begins and ends it. Valid as long as the source is.
  std::optional<TokenView> tokens;
  /// Or a conversation, encoded.
  std::optional<EncodedChat> chat;
  SourcePosition start;
};

struct SourceCounters {
  int64_t documents = 0;
  int64_t bad_records = 0;   ///< records skipped under BadRecord::skip
  int64_t invalid_utf8 = 0;  ///< malformed sequences replaced by U+FFFD
};

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  /// Reads the next document; false at the end of a pass (then `seek({})` begins the next one).
  /// Throws Error(bad_data) naming file and line.
  virtual bool next(Document& document) = 0;

  /// Continues with the document that begins at `start`; `{}` is the first one.
  virtual void seek(const SourcePosition& start) = 0;

  /// Continues with the first document of pass `epoch` (0, 1, …), for sources whose passes differ.
  virtual void begin_pass(int64_t epoch) {
    static_cast<void>(epoch);
    seek({});
  }

  /// Documents of one pass, bad records included; nothing where they cannot be read in any order (a packed file).
  /// May read the whole corpus once.
  virtual std::optional<int64_t> count_documents() { return std::nullopt; }

  /// Document number `index` of those; false for a bad record that is skipped. Leaves `next` where it was.
  virtual bool read(int64_t index, Document& document);

  /// Throws Error(bad_data) when the tokenizer does not fit: the documents are ids of another vocabulary, or are text
  /// and it reads none.
  virtual void check_tokenizer(const Tokenizer& tokenizer) const;

  /// What is being read, for the message of a stalled read. May be called while another thread is inside `next`.
  virtual std::string reading() const = 0;

  /// For messages: "corpus.jsonl", "text/ (12 files, 3.1 MiB)".
  virtual std::string description() const = 0;

  /// Changes when the documents would: file names and sizes.
  virtual uint64_t fingerprint() const = 0;

  /// The files with their sizes when the source was opened.
  virtual CorpusFiles file_sizes() const { return {}; }
  /// What decides the documents and their order besides the files, in words.
  virtual std::string order() const { return {}; }
  /// Why a position saved at `at` is none of the corpus that has grown since; empty: what came is read after the rest.
  virtual std::string growth_obstacle(const CorpusGrowth& growth, const SourcePosition& at) const {
    static_cast<void>(growth), static_cast<void>(at);
    return {};
  }

  /// Sums since the source was opened, passes and seeks included.
  const SourceCounters& counters() const { return counters_; }

  /// Warnings gathered since the last call; the caller shows them.
  std::vector<std::string> take_notices();

 protected:
  /// Replaces malformed UTF-8 in place and counts it.
  void repair(std::string& text);
  void notice(std::string text) { notices_.push_back(std::move(text)); }

  SourceCounters counters_;

 private:
  std::vector<std::string> notices_;
};

/// What to do with a JSONL line that is no JSON or lacks the text field, or is no conversation.
enum class BadRecord { error, skip };

struct DatasetOptions {
  std::string dataset = "text";     ///< text, c4, c4_test, c4_validation or chat
  std::string path = {};            ///< a file, a folder or a glob
  std::string text_field = "text";  ///< of JSONL records
  BadRecord bad_record = BadRecord::error;
  /// Another order in every pass: a permutation of (this seed, pass, place). Nothing: the corpus's own order.
  std::optional<uint64_t> shuffle_seed = {};
  /// torchtitan's split: this source gives the documents of rank `split_rank` alone.
  int64_t split_ranks = 1, split_rank = 0;
  /// Of "chat": what encodes the conversations.
  std::shared_ptr<const ChatTemplate> chat = {};
};

/// The names `DatasetOptions::dataset` of text may have, in any case.
std::vector<std::string> dataset_names();

/// Opens the source. Throws Error(bad_data): unknown name, missing path, nothing to read in it, a form that is not read
/// here, a corpus that cannot be shuffled.
std::unique_ptr<DocumentSource> open_dataset(const DatasetOptions& options);

}  // namespace titan
