// Ids that other programs wrote, memory-mapped where they are: Megatron-LM's .bin with .idx, datatrove's and nanotron's
// .ds, llm.c's and nanoGPT's .bin. None has checksums or says how many ids its vocabulary has: ids are compared with
// the run's vocabulary, some at the start (probe_ids) and each document when it is copied (TokenView::append_to).
// Documents hold what their maker wrote; no BOS or EOS is added or removed.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapped_file.h"
#include "titan/base/error.h"
#include "titan/corpus/token_file.h"

namespace titan {

/// Throws the reason why a .bin file without an index of this program is not read, if its format is not known.
[[noreturn]] void refuse_unknown_ids(const std::filesystem::path& bin);

/// The ids of a mapped file from some byte of it on.
class MappedIds {
 public:
  /// Maps the file; set_layout comes next.
  explicit MappedIds(std::filesystem::path path) : path_(std::move(path)), file_(path_) {}

  /// The ids have this type and begin at byte `offset`, a multiple of 8. Bytes that make no whole id are left out.
  void set_layout(IdType type, int64_t offset);

  const std::filesystem::path& path() const { return path_; }
  const MappedFile& file() const { return file_; }
  IdType type() const { return type_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return static_cast<int64_t>(file_.size()); }

  /// `count` ids from `first` on, of an unknown vocabulary. Throws Error(bad_data) if the file, or `index`, was written
  /// to since it was mapped.
  TokenView view(int64_t first, int64_t count, const MappedFile* index = nullptr);

 private:
  std::filesystem::path path_;
  MappedFile file_;
  ChangeWatch watch_;
  IdType type_ = IdType::uint16;
  int64_t offset_ = 0, size_ = 0;
};

/// A file of another program that has an index of its documents.
class IndexedIdFile : public IdFile {
 public:
  IndexedIdFile(const std::filesystem::path& path, const std::filesystem::path& index);

  TokenView document(int64_t index) override;
  IdType type() const override { return ids_.type(); }
  CorpusFiles files() const override;
  MappedIds* unverified_ids() override { return &ids_; }

 protected:
  /// Place of the first id of document `index`; for `index` = documents, the end of the last one.
  virtual int64_t begin_of(int64_t index) const = 0;

  /// The ids from `begin` to `end`, as the index says. Throws Error(bad_data) for what was right when the file was
  /// opened.
  TokenView part(int64_t begin, int64_t end);
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const { fail_ids(path_, what, remedy); }
  /// The number of type `Number` at byte `at` of the index, where it need not be aligned.
  template <typename Number>
  Number index_number(size_t at) const {
    TITAN_CHECK(at + sizeof(Number) <= index_.size(), at, index_.size());
    Number number;
    std::memcpy(&number, index_.bytes() + at, sizeof number);
    return number;
  }

  MappedIds ids_;
  std::filesystem::path index_path_;
  MappedFile index_;
};

/// Of PREFIX.bin: PREFIX.idx.
std::filesystem::path megatron_index_path(const std::filesystem::path& bin);

/// True for the name of a file in which Megatron-LM's data sets keep the order of samples: by default in
/// PREFIX/cache/GPTDataset_indices beside PREFIX.bin, one of them a .txt file that is no text to train on.
bool is_megatron_cache(const std::string& name);

/// Throws Error(bad_data) for an index that is damaged, contradicts itself or its .bin file, or describes ids of a type
/// that no tokenizer has.
std::unique_ptr<IdFile> open_megatron_file(const std::filesystem::path& bin);

/// A .ds file with its .ds.index. Throws Error(bad_data): no index, or one that does not fit.
std::unique_ptr<IdFile> open_datatrove_file(const std::filesystem::path& ds);

/// True for a .bin file with Megatron-LM's index beside it, and for a .ds file: they do not say their vocabulary.
bool is_indexed_elsewhere(const std::filesystem::path& path);

/// A file whose documents are known when it is opened: of this program, Megatron-LM, datatrove or nanotron. Throws
/// Error(bad_data) with what is wrong and what to do.
std::unique_ptr<IdFile> open_id_file(const std::filesystem::path& path);

/// What a probe of a corpus shows: a look at some of its ids, or at all of them.
struct IdProbe {
  int64_t ids = 0;       ///< that were looked at
  int64_t largest = -1;  ///< -1: the corpus is empty
  /// A view of one id. Of a sample: a negative one, if one was found, else the largest; nullopt: the corpus is empty.
  /// Of all ids: the first that is outside the vocabulary; nullopt: there is none.
  std::optional<TokenView> worst;
  int64_t outside = 0;  ///< of all ids: those outside the vocabulary; of a sample they are not counted
};

/// Adds to a probe of all ids those of `view`, which come after the ids so far.
void add_checked(IdProbe& probe, const TokenView& view);

/// Looks at evenly spaced blocks of the files, the first and the last included, kProbeBytes in all; of a smaller
/// corpus, at all ids. A corpus may hold terabytes, so it cannot be read at each start.
IdProbe probe_ids(const std::vector<MappedIds*>& files);
inline constexpr int64_t kProbeBytes = int64_t{16} << 20;

/// Throws Error(bad_data) if the probe found an id that `tokenizer` does not have. `corpus`: the user's name for the
/// files; `maker`: the name of the tokenizer in them, or empty.
void check_probe(const IdProbe& probe, const std::string& corpus, const std::string& maker, const Tokenizer& tokenizer);

}  // namespace titan
