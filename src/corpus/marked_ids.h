// Ids without an index, whose documents begin or end with a certain id: llm.c's files, which begin with a header, and
// nanoGPT's, which hold nothing but ids. Documents are found while reading, so opening is as fast for a terabyte; only
// random access (shuffling) reads all files once.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foreign_ids.h"
#include "token_source.h"

namespace titan {

/// True if a file begins with the header of llm.c's questions for evaluations, which are stored as ids, too.
bool is_llm_c_questions(std::string_view head);

/// True for a .bin file without an index that begins with a header of llm.c (or of modded-nanogpt, which is the same).
bool is_llm_c_file(const std::filesystem::path& path);

/// What the header of llm.c's file says of the vocabulary. Throws Error(bad_data) for a header that is damaged.
TokenFileFacts llm_c_vocabulary(const std::filesystem::path& path);

class MarkedIdSource : public IdSource {
 public:
  enum class Maker { llm_c, nanogpt };

  /// A document without a mark for so many ids is cut: a wrong tokenizer must not make one document of a file.
  static constexpr int64_t kLongestDocument = int64_t{1} << 20;

  /// `path`: the user's name for the files, for messages. `tokenizer`: the run's; nanoGPT's documents end with its
  /// end-of-text id. Throws Error(bad_data): a header that does not fit the file, a file of another kind or vocabulary.
  MarkedIdSource(std::string path, const std::vector<std::filesystem::path>& files, Maker maker,
                 const Tokenizer* tokenizer, int64_t longest_document = kLongestDocument);

  bool next(Document& document) override;
  /// A position is a file and, as `byte`, the offset among its ids.
  void seek(const SourcePosition& start) override;
  /// Finds the documents of all files at the first call.
  std::optional<int64_t> count_documents() override;
  bool read(int64_t index, Document& document) override;

  std::string reading() const override { return files_[reading_.load()]->path().string(); }
  std::string description() const override;
  std::string place_of(const SourcePosition& start) const override;
  std::string format() const override;
  std::string order() const override;
  uint64_t fingerprint() const override;
  CorpusFiles file_sizes() const override;
  void check_described(const Tokenizer& tokenizer) const override;
  void check_ids(const IdProbe& probe, const Tokenizer& tokenizer) const override;

  IdFacts facts() const override;
  IdProbe probe() const override;

 private:
  int64_t width() const { return size_of(files_.front()->type()); }
  /// The end of the document of `file` that begins with its id `begin`.
  int64_t end_of(MappedIds& file, int64_t begin) const;
  void give(size_t file, int64_t begin, int64_t end, Document& document);

  std::string path_;
  Maker maker_;
  std::string of_;                   // "llm.c (GPT-2)"
  int32_t mark_ = Tokenizer::kNoId;  // kNoId: documents are cut by length alone
  int64_t vocabulary_ = kMostIds;    // of the run's tokenizer
  int64_t longest_document_;
  std::vector<std::unique_ptr<MappedIds>> files_;
  SourcePosition position_;  // of the next document
  std::atomic<size_t> reading_{0};

  // For random access, filled by count_documents: where every document begins, by file, and the first of each file.
  std::vector<std::vector<int64_t>> begins_;
  std::vector<int64_t> first_;
  std::optional<int64_t> documents_;
};

}  // namespace titan
