// A source of documents from .bin files, which already hold ids.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "titan/corpus/document_source.h"
#include "titan/corpus/token_file.h"
#include "titan/text/tokenizer.h"

namespace titan {

class TokenFileSource : public DocumentSource {
 public:
  /// Opens all `files`, read in this order. `path`: the user's name for them, for messages. Throws Error(bad_data): see
  /// TokenFile; files of different vocabularies.
  TokenFileSource(std::string path, const std::vector<std::filesystem::path>& files);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  std::string place_of(const SourcePosition& start) const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  std::string format() const override { return "ids of titan_train data tokenize"; }
  std::string order() const override { return "ids"; }
  std::optional<int64_t> count_documents() override { return documents_; }
  bool read(int64_t index, Document& document) override;
  void check_tokenizer(const Tokenizer& tokenizer) const override;

  /// Facts of all files together.
  TokenFileFacts facts() const;

 private:
  size_t file_of(int64_t document) const;

  std::string path_;
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<int64_t> first_;  // first document of each file
  int64_t documents_ = 0;
  int64_t next_ = 0;
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
