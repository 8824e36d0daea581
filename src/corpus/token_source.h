// Sources of documents from files that already hold ids.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foreign_ids.h"
#include "titan/corpus/document_source.h"
#include "titan/corpus/token_file.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// What the files of a source of ids say of themselves, all of them together.
struct IdFacts {
  std::string types = {};  ///< of the ids: "uint16"; "uint16, int32" if files differ
  int64_t tokens = 0;
  std::optional<int64_t> documents = {};  ///< nothing: not counted yet
  std::optional<int64_t> entries = {};    ///< of Megatron-LM's indexes (EntryIndex)
  std::string vocabulary = {};            ///< what the files say of it; empty: nothing
};

class IdSource : public DocumentSource {
 public:
  /// Warnings about files that are left out (notices_of).
  void add_notices(std::vector<std::string> notices) {
    for (std::string& text : notices) notice(std::move(text));
  }

  /// The part of check_tokenizer that needs no look at ids: what the files say of their vocabulary. Throws
  /// Error(bad_data).
  virtual void check_described(const Tokenizer& tokenizer) const = 0;
  /// Throws Error(bad_data) if `probe` found an id that the tokenizer does not have.
  virtual void check_ids(const IdProbe& probe, const Tokenizer& tokenizer) const = 0;
  void check_tokenizer(const Tokenizer& tokenizer) const override {
    check_described(tokenizer);
    check_ids(probe(), tokenizer);
  }

  virtual IdFacts facts() const = 0;
  /// Reads some ids of all files, kProbeBytes at most; of this program's files none, since their index says enough.
  virtual IdProbe probe() const = 0;
};

/// Documents of files that know where these end: of this program, Megatron-LM, datatrove and nanotron.
class TokenFileSource : public IdSource, private EntryIndex {
 public:
  /// Opens all `files`, read in this order. `path`: the user's name for them, for messages. `tokenizer`: the run's,
  /// with which ids are compared that come without a vocabulary; nullptr: with none. Throws Error(bad_data): see
  /// open_id_file; files of different formats or vocabularies.
  TokenFileSource(std::string path, const std::vector<std::filesystem::path>& files,
                  const Tokenizer* tokenizer = nullptr);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  std::string place_of(const SourcePosition& start) const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  std::string format() const override;
  std::string order() const override;
  std::optional<int64_t> count_documents() override { return documents_; }
  bool read(int64_t index, Document& document) override;
  EntryIndex* entry_index() override;
  void check_described(const Tokenizer& tokenizer) const override;
  void check_ids(const IdProbe& probe, const Tokenizer& tokenizer) const override;

  IdFacts facts() const override;
  IdProbe probe() const override;

 private:
  bool is_own() const { return files_.front()->unverified_ids() == nullptr; }
  void check_alike(const IdFile& file) const;
  size_t file_of(int64_t document) const;

  std::vector<int32_t> lengths() const override;
  TokenView entry(int64_t index) override;

  std::string path_;
  std::vector<std::unique_ptr<IdFile>> files_;
  std::vector<int64_t> first_;  // first document of each file
  int64_t documents_ = 0;
  int64_t next_ = 0;
  int64_t vocabulary_ = kMostIds;  // of ids that come without one
  std::atomic<size_t> reading_{0};
};

// The vocabulary of ids from another program, as recorded in a .bin file's index: the number of ids, BOS and EOS, but
// not how to encode text. Allows training on ids of an unsupported tokenizer.

class RecordedVocabulary : public Tokenizer {
 public:
  /// From the facts in an index.
  explicit RecordedVocabulary(TokenFileFacts facts) : facts_(std::move(facts)) {}
  /// A vocabulary of `size` ids; `maker` distinguishes vocabularies of the same size. Throws Error(bad_config): an
  /// invalid size, or a BOS or EOS id (kNoId: none) outside it.
  RecordedVocabulary(int64_t size, int32_t bos, int32_t eos, const std::string& maker);

  bool reads_text() const override { return false; }
  /// Throws Error(bad_data): this vocabulary cannot encode text.
  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  /// The ids as numbers.
  std::string decode(std::span<const int32_t> ids) const override;

  int64_t vocabulary_size() const override { return facts_.vocabulary; }
  int32_t bos_id() const override { return facts_.bos; }
  int32_t eos_id() const override { return facts_.eos; }
  std::string name() const override { return "ids alone"; }
  std::string description() const override { return facts_.tokenizer; }
  uint64_t fingerprint() const override { return facts_.vocabulary_fingerprint; }

 private:
  TokenFileFacts facts_;
};

}  // namespace titan
