// Megatron-LM's PREFIX.bin and PREFIX.idx. The index, little-endian and without padding: "MMIDIDX" and two zero bytes,
// uint64 version (1), uint8 type of the ids, uint64 entries n, uint64 boundaries of documents m, n int32 lengths of
// entries (in ids), n int64 places of entries (in bytes), m int64 boundaries of documents (in entries, 0 first);
// of multimodal corpora n int8 modes of entries. Megatron-LM calls entries sequences.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "file_source.h"
#include "foreign_ids.h"
#include "titan/base/text.h"
#include "titan/corpus/document_source.h"

namespace titan {
namespace {

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kFormerMagic{"TNTIDX\0\0", 8};
constexpr size_t kVersionAt = 9, kTypeAt = 17, kEntriesAt = 18, kBoundariesAt = 26, kMegatronHeader = 34;

const std::string kBothAgain = "Get both files again, or make them again with Megatron-LM";

/// A type of numbers that Megatron-LM stores.
struct StoredType {
  std::string_view name;
  std::optional<IdType> type;  ///< nothing: the numbers are not integers
};
/// The type with code c is the entry c - 1.
constexpr std::array<StoredType, 8> kTypes{{{"uint8", IdType::uint8},
                                            {"int8", IdType::int8},
                                            {"int16", IdType::int16},
                                            {"int32", IdType::int32},
                                            {"int64", IdType::int64},
                                            {"float64", std::nullopt},
                                            {"float32", std::nullopt},
                                            {"uint16", IdType::uint16}}};

class MegatronFile : public IndexedIdFile, private EntryIndex {
 public:
  explicit MegatronFile(const std::filesystem::path& bin) : IndexedIdFile(bin, megatron_index_path(bin)) {
    ids_.set_layout(read_type(), 0);
    find_parts();
    check_entries();
    check_documents();
    facts_.token_bytes = size_of(ids_.type());
    facts_.tokens = ids_.size();
  }

  std::string format() const override { return "Megatron ids"; }
  std::optional<int64_t> entries() const override { return entries_; }
  EntryIndex* entry_index() override { return this; }

 private:
  std::vector<int32_t> lengths() const override;
  TokenView entry(int64_t index) override;
  std::string index_name() const { return index_path_.filename().string(); }

  IdType read_type() const;
  void find_parts();
  void check_entries() const;
  void check_documents();
  int64_t begin_of(int64_t index) const override;
  /// Place of its first id; -1 for a number that is no entry, in an index that was written to.
  int64_t begin_of_entry(int64_t entry) const;

  int64_t place_of_entry(int64_t entry) const {
    return index_number<int64_t>(places_ + static_cast<size_t>(entry) * sizeof(int64_t));
  }
  int64_t boundary(int64_t index) const {
    return index_number<int64_t>(boundaries_ + static_cast<size_t>(index) * sizeof(int64_t));
  }

  int64_t entries_ = 0, boundary_count_ = 0;
  size_t places_ = 0, boundaries_ = 0;  // in the index, in bytes
  bool has_documents_ = true;           // else each entry is one
};

IdType MegatronFile::read_type() const {
  const std::string_view index(index_.bytes(), index_.size());
  if (index.starts_with(kFormerMagic)) {
    fail(fmt::format("its index {} is in a former format of Megatron-LM (TNTIDX)", index_name()),
         "Make the corpus again with a Megatron-LM of today");
  }
  if (!index.starts_with(kMegatronMagic.substr(0, index.size()))) {
    fail(fmt::format("its index {} is no index of Megatron-LM: it does not begin with MMIDIDX", index_name()),
         kBothAgain);
  }
  if (index.size() < kMegatronHeader) fail(fmt::format("its index {} is cut off", index_name()), kBothAgain);
  if (const auto version = index_number<uint64_t>(kVersionAt); version != 1) {
    fail(fmt::format("its index {} has version {}, and version 1 is read", index_name(), version),
         "Make the corpus again with a Megatron-LM that writes version 1");
  }
  const size_t code = index_number<uint8_t>(kTypeAt);
  if (code < 1 || code > kTypes.size()) {
    fail(fmt::format("its index {} says that the type of its ids is {}, and Megatron-LM's are 1 to {}", index_name(),
                     code, kTypes.size()),
         kBothAgain);
  }
  const StoredType& stored = kTypes[code - 1];
  if (!stored.type) {
    fail(fmt::format("its ids are {} numbers, as its index {} says, and ids are integers", stored.name, index_name()),
         "Make the corpus again with --dtype or a tokenizer that gives integers");
  }
  return *stored.type;
}

/// Finds the parts of the index. A header may say anything, so each count is compared with the index's size before it
/// is multiplied.
void MegatronFile::find_parts() {
  const auto entries = index_number<uint64_t>(kEntriesAt), boundaries = index_number<uint64_t>(kBoundariesAt);
  const size_t left = index_.size() - kMegatronHeader;
  constexpr size_t kOfEntry = sizeof(int32_t) + sizeof(int64_t);
  const bool fits = entries <= left / kOfEntry && boundaries <= (left - entries * kOfEntry) / sizeof(int64_t);
  const size_t rest = fits ? left - entries * kOfEntry - boundaries * sizeof(int64_t) : 0;
  if (!fits || (rest != 0 && rest != entries)) {
    fail(fmt::format("its index {} is cut off or damaged: it has {} bytes, and does not hold the {} entries and {} "
                     "boundaries of documents that its header says",
                     index_name(), with_thousands(static_cast<int64_t>(index_.size())), entries, boundaries),
         kBothAgain);
  }
  entries_ = static_cast<int64_t>(entries);
  boundary_count_ = static_cast<int64_t>(boundaries);
  places_ = kMegatronHeader + entries * sizeof(int32_t);
  boundaries_ = places_ + entries * sizeof(int64_t);
  const char* modes = index_.bytes() + index_.size() - rest;
  for (size_t i = 0; i < rest; ++i) {
    if (modes[i] == 0) continue;
    fail(fmt::format("it is a multimodal corpus: its entry {} has mode {}, and only text (mode 0) is read", i,
                     static_cast<int>(modes[i])),
         "Give a corpus of text");
  }
}

/// Entries follow each other from the beginning of the file to its end, so a document is one piece.
void MegatronFile::check_entries() const {
  const int64_t width = size_of(ids_.type()), bytes = ids_.bytes();
  int64_t end = 0;
  for (int64_t i = 0; i < entries_; ++i) {
    const auto length = index_number<int32_t>(kMegatronHeader + static_cast<size_t>(i) * sizeof(int32_t));
    const int64_t place = place_of_entry(i);
    if (length < 0) {
      fail(fmt::format("its index {} is damaged: entry {} has the length {}", index_name(), i, length), kBothAgain);
    }
    if (place != end) {
      fail(fmt::format("in its index {} entry {} begins at byte {}, and the one before it ends at byte {}",
                       index_name(), i, place, end),
           kBothAgain);
    }
    end += length * width;
    if (end > bytes) break;  // before the sum overflows
  }
  if (end == bytes) return;
  fail(fmt::format("it has {} bytes, and its index {} describes {}{}: the two are not of one corpus, or one of them is "
                   "cut off",
                   with_thousands(bytes), index_name(), end > bytes ? "more, at least " : "", with_thousands(end)),
       kBothAgain);
}

void MegatronFile::check_documents() {
  const std::string damaged = fmt::format("its index {} is damaged: ", index_name());
  if (boundary_count_ < 1 || boundary(0) != 0) {
    fail(damaged + "its first document does not begin with the first entry", kBothAgain);
  }
  // A writer that never calls end_document leaves the first boundary alone; then Megatron-LM trains on entries.
  has_documents_ = boundary_count_ > 1;
  facts_.documents = has_documents_ ? boundary_count_ - 1 : entries_;
  if (!has_documents_) return;
  for (int64_t i = 1; i < boundary_count_; ++i) {
    if (boundary(i) >= boundary(i - 1)) continue;
    fail(fmt::format("{}document {} ends before it begins, at entry {}", damaged, i - 1, boundary(i)), kBothAgain);
  }
  if (boundary(boundary_count_ - 1) == entries_) return;
  fail(fmt::format("{}its last document ends at entry {} of {}", damaged, boundary(boundary_count_ - 1), entries_),
       kBothAgain);
}

std::vector<int32_t> MegatronFile::lengths() const {
  std::vector<int32_t> lengths(static_cast<size_t>(entries_));
  if (entries_ > 0) std::memcpy(lengths.data(), index_.bytes() + kMegatronHeader, lengths.size() * sizeof(int32_t));
  return lengths;
}

TokenView MegatronFile::entry(int64_t index) {
  TITAN_CHECK(index >= 0 && index < entries_, index, entries_);
  ids_.view(0, 0, &index_);  // throws if a file was written to; called before the index is read
  return part(begin_of_entry(index), begin_of_entry(index + 1));
}

int64_t MegatronFile::begin_of(int64_t index) const { return begin_of_entry(has_documents_ ? boundary(index) : index); }

int64_t MegatronFile::begin_of_entry(int64_t entry) const {
  if (entry == entries_) return ids_.size();
  return entry < 0 || entry > entries_ ? -1 : place_of_entry(entry) / size_of(ids_.type());
}

/// A file in or below the folder that may be part of a corpus, or a link to another folder; nothing if the folder holds
/// none, such as one with Megatron-LM's cache alone.
std::optional<std::filesystem::path> find_own_file(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code problem;  // what cannot be read is nothing that a run would read
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, problem);
  for (const fs::recursive_directory_iterator end; !problem && entry != end; entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    std::error_code unknown;
    if (name.starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_directory(unknown)) {
      if (entry->is_symlink(unknown)) return entry->path();
    } else if (text_form(entry->path()) != TextForm::none && !is_megatron_cache(name)) {
      return entry->path();
    }
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path megatron_index_path(const std::filesystem::path& bin) {
  std::filesystem::path index = bin;
  return index.replace_extension(".idx");
}

std::unique_ptr<IdFile> open_megatron_file(const std::filesystem::path& bin) {
  return std::make_unique<MegatronFile>(bin);
}

bool is_megatron_cache(const std::string& name) {
  // A hash in hexadecimal digits, the class, the split and the part: "0f3a…-GPTDataset-train-sample_index.npy".
  constexpr std::array<std::string_view, 3> kSplits{"Dataset-train-", "Dataset-valid-", "Dataset-test-"};
  constexpr std::array<std::string_view, 6> kParts{"description.txt",   "document_index.npy",
                                                   "sample_index.npy",  "shuffle_index.npy",
                                                   "dataset_index.npy", "dataset_sample_index.npy"};
  const size_t hash = name.find_first_not_of("0123456789abcdef");
  if (hash == 0 || hash == name.npos || name[hash] != '-') return false;
  return std::any_of(kSplits.begin(), kSplits.end(), [&](std::string_view split) {
    const size_t at = name.find(split, hash);
    const std::string_view part = at == name.npos ? "" : std::string_view(name).substr(at + split.size());
    return std::find(kParts.begin(), kParts.end(), part) != kParts.end();
  });
}

std::optional<std::filesystem::path> find_megatron_file(const std::string& prefix) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const auto is_file = [&](const std::string& path) { return fs::is_regular_file(path, unknown); };
  const bool is_folder = fs::is_directory(prefix, unknown);
  if (!is_file(prefix + ".bin") || !is_file(prefix + ".idx")) return {};
  if (!is_folder) return fs::exists(prefix, unknown) ? std::nullopt : std::optional<fs::path>(prefix + ".bin");
  if (const std::optional<fs::path> other = find_own_file(prefix)) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {0}: this is a corpus of Megatron-LM ({0}.bin and {0}.idx) and also a folder that "
                            "holds {1}. Name {0}.bin for the one, or {0}/ for the other.",
                            prefix, other->string()));
  }
  return prefix + ".bin";
}

bool name_one_corpus(const std::string& path, const std::string& other) {
  try {
    const std::vector<std::filesystem::path> files = find_text_files(path).files, others = find_text_files(other).files;
    return std::equal(files.begin(), files.end(), others.begin(), others.end(), [](const auto& one, const auto& two) {
      std::error_code unknown;
      return std::filesystem::equivalent(one, two, unknown);
    });
  } catch (const Error&) {
    return false;  // whoever opens the corpus says what is wrong with it
  } catch (const std::filesystem::filesystem_error&) {
    return false;
  }
}

}  // namespace titan
