// Documents out of .bin files, which are ids already.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/document_source.h"
#include "titan/data/token_file.h"
#include "titan/data/tokenizer.h"

namespace titan {

class TokenFileSource : public DocumentSource {
 public:
  /// Opens all of `files`, which are read in this order. `path`: what the user named, for messages. Throws
  /// Error(bad_data): see TokenFile; files of different vocabularies.
  TokenFileSource(std::string path, const std::vector<std::filesystem::path>& files);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  std::string reading() const override;
  std::string description() const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  std::string order() const override { return "ids"; }
  std::optional<int64_t> count_documents() override { return documents_; }
  bool read(int64_t index, Document& document) override;
  void check_tokenizer(const Tokenizer& tokenizer) const override;

  /// Of all files together.
  TokenFileFacts facts() const;

 private:
  std::string path_;
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<int64_t> first_;  // document of each file
  int64_t documents_ = 0;
  int64_t next_ = 0;
  std::atomic<size_t> reading_{0};
};

// The vocabulary of ids that some other program made: how many there are and which of them begin and end a text, but
// not how text becomes them. What a .bin file's index records; with it a run trains on ids whose tokenizer it cannot
// read.

class RecordedVocabulary : public Tokenizer {
 public:
  /// What an index says.
  explicit RecordedVocabulary(TokenFileFacts facts) : facts_(std::move(facts)) {}
  /// Of `size` ids; `maker` distinguishes vocabularies of the same size. Throws Error(bad_config): a size that is none,
  /// a begin- or end-of-text id (kNoId: none) that is not in it.
  RecordedVocabulary(int64_t size, int32_t bos, int32_t eos, const std::string& maker);

  bool reads_text() const override { return false; }
  /// Throws Error(bad_data): there is no way from text to these ids.
  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  /// The ids themselves, as numbers.
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
