// A corpus's identity in a saved data position: names and sizes of the files and hashes of some of their bytes. Used on
// resume to determine whether the corpus is the same, or where it changed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// Files with their sizes, in reading order.
using CorpusFiles = std::vector<std::pair<std::filesystem::path, int64_t>>;

struct CorpusRecord {
  struct File {
    int64_t index = 0;  ///< among all files
    std::string name;   ///< without the folder
    int64_t bytes = 0;
    uint64_t before = 0;            ///< hash of the names and sizes of all earlier files
    std::vector<uint64_t> samples;  ///< hashes of sampled blocks, including the first and the last

    bool operator==(const File&) const = default;
  };

  std::string order;        ///< the other settings that determine the documents: field, split, shuffle
  uint64_t tokenizer = 0;   ///< the tokenizer's fingerprint
  std::vector<File> files;  ///< all, or an even sample that includes the last; empty: nothing was recorded

  bool operator==(const CorpusRecord&) const = default;
};

/// Reads at most kCorpusSamples blocks of kCorpusBlock bytes, and some more of the last file. Ignores a file that
/// cannot be read; its reader reports it.
CorpusRecord record_corpus(const CorpusFiles& files, std::string order, uint64_t tokenizer);
/// To read all of a corpus at each start would take as long as a pass over it. An edit that is shorter than the
/// distance between two samples, and changes no size, is missed; more samples are more random reads.
inline constexpr size_t kCorpusSamples = 64;
inline constexpr int64_t kCorpusBlock = 4096;

/// Throws Error(bad_data) if the files differ from `then`, which must hold some: with the file that changed and the
/// range of bytes, or by how much the corpus grew; `corpus` is its name for the message.
void check_same_corpus(const CorpusRecord& then, const CorpusFiles& now, const std::string& corpus);

/// Throws an Error with the remedy for a corpus that does not match a saved position.
[[noreturn]] void refuse_corpus(const std::string& corpus, const std::string& what);

nlohmann::json to_json(const CorpusRecord& record);
/// Throws exceptions of nlohmann::json and std::stoull.
CorpusRecord corpus_record_from_json(const nlohmann::json& json);

}  // namespace titan
