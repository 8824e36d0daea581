// Documents out of .bin files, which are ids already.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/document_source.h"
#include "titan/data/token_file.h"

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

}  // namespace titan
