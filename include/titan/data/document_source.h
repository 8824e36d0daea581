// Where documents come from, one at a time: files on disk or the embedded generator. A source knows no tokens.
// A document can be found again from its position alone, which is how a stopped stream is taken up.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace titan {

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

  /// What is being read, for the message of a stalled read. May be called while another thread is inside `next`.
  virtual std::string reading() const = 0;

  /// For messages: "stories (seed 1)", "corpus.jsonl", "text/ (12 files, 3.1 MiB)".
  virtual std::string description() const = 0;

  /// Changes when the documents would: file names and sizes, or the generator's seed.
  virtual uint64_t fingerprint() const = 0;

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

/// What to do with a JSONL line that is no JSON or lacks the text field.
enum class BadRecord { error, skip };

struct DatasetOptions {
  std::string dataset = "stories";  ///< stories, text, c4, c4_test or c4_validation
  std::string path = {};            ///< a file, a folder or a glob; stories need none and ignore it
  std::string text_field = "text";  ///< of JSONL records
  BadRecord bad_record = BadRecord::error;
  uint64_t seed = 0;        ///< of the generator
  bool validation = false;  ///< stories: a finite set of documents that training never sees
};

/// The names `DatasetOptions::dataset` may have.
std::vector<std::string> dataset_names();

/// Opens the source. Throws Error(bad_data): unknown name, missing path, nothing to read in it, a format not built yet.
std::unique_ptr<DocumentSource> open_dataset(const DatasetOptions& options);

}  // namespace titan
