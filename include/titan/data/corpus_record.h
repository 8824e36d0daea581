// What a saved data position remembers of its corpus: names and sizes of the files and hashes of some of their bytes.
// From it follows, at the next start, whether the corpus is the same, has grown at its end, or where it changed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// Files in the order in which they are read, with their sizes.
using CorpusFiles = std::vector<std::pair<std::filesystem::path, int64_t>>;

struct CorpusRecord {
  struct File {
    int64_t index = 0;  ///< among all files
    std::string name;   ///< without its folder
    int64_t bytes = 0;
    uint64_t before = 0;            ///< hash of the names and sizes of all files before it
    std::vector<uint64_t> samples;  ///< hashes of some of its blocks, the first and the last among them

    bool operator==(const File&) const = default;
  };

  std::string order;        ///< what decides the documents besides the files: the field, the split, the shuffle
  uint64_t tokenizer = 0;   ///< its fingerprint
  std::vector<File> files;  ///< all, or evenly chosen ones of many; the last one always. Empty: nothing is remembered

  bool operator==(const CorpusRecord&) const = default;
};

/// Reads at most kCorpusSamples blocks of kCorpusBlock bytes, and some more of the last file. A file that cannot be
/// read is left to its reader.
CorpusRecord record_corpus(const CorpusFiles& files, std::string order, uint64_t tokenizer);
inline constexpr size_t kCorpusSamples = 64;
inline constexpr int64_t kCorpusBlock = 4096;

/// The part of a corpus at its end that was not there before.
struct CorpusGrowth {
  size_t file = 0;       ///< the last one of before
  int64_t bytes = 0;     ///< that it had
  std::string sentence;  ///< which file has how much more, and how many files are new
};

/// What has come to the end of the corpus since `then`; nothing when it is the same. Throws Error(bad_data) that says
/// which file changed and between which bytes; `corpus`: its name, for that.
std::optional<CorpusGrowth> find_growth(const CorpusRecord& then, const CorpusFiles& now, const std::string& corpus);

/// Says what to do about a corpus that does not fit a saved position.
[[noreturn]] void refuse_corpus(const std::string& corpus, const std::string& what);

nlohmann::json to_json(const CorpusRecord& record);
/// Throws what nlohmann::json and std::stoull throw.
CorpusRecord corpus_record_from_json(const nlohmann::json& json);

}  // namespace titan
