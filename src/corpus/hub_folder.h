// Folders as the package `datasets` writes and downloads them: which of their files are read, and in which order.
// Private to corpus.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file_source.h"

namespace titan {

/// Whether the folder is one of `save_to_disk`.
bool is_saved_dataset(const std::filesystem::path& folder);
inline constexpr std::string_view kSavedDataset =
    "this is a folder of datasets' save_to_disk, whose Arrow files are not read; convert it with python -c \"import "
    "datasets; datasets.load_from_disk('FOLDER').to_json('FILE.jsonl')\"";

/// Whether this is a folder of the hub's cache (datasets--OWNER--NAME), which holds revisions of a data set.
bool is_hub_cache(const std::filesystem::path& folder);
/// Of a folder of the hub's cache, or its snapshots/: the folder of the revision that refs/main names, or of the only
/// one. Any other folder as it is. Throws Error(bad_data) with the revisions if none is named.
std::filesystem::path hub_revision(const std::filesystem::path& folder);

/// Whether a file of this name describes a data set and holds none of its records.
bool describes_dataset(const std::string& name);

/// In a data set's folder of the hub, keeps the files that `datasets` reads for training, in its order, and says so in
/// `found.notices`. `others`: files that are not read here. Throws Error(bad_data) if README.md leaves the choice open
/// or cannot be followed, if a file is of a kind that is not read, or if `datasets` finds none. Returns whether this is
/// such a folder.
bool choose_hub_files(const std::filesystem::path& folder, TextFiles& found,
                      const std::vector<std::filesystem::path>& others);

/// Splits and the patterns of their files.
using HubPatterns = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// An entry of "configs" in the YAML at the beginning of a README.md.
struct HubConfiguration {
  std::string name;
  bool is_default = false;
  std::string data_dir = {};              ///< a folder that the patterns are relative to, with a slash; may be empty
  std::optional<HubPatterns> files = {};  ///< none: by the names of the files
};

/// The configurations in README.md; nothing if it does not begin with YAML. Throws Error(bad_data) for what is not
/// followed, with the line.
std::optional<std::vector<HubConfiguration>> read_hub_card(const std::filesystem::path& folder);

/// Whether fsspec's glob, as `datasets` calls it, finds `path` by `pattern`: both relative to one folder, with slashes,
/// and without hidden parts.
bool matches_hub_pattern(std::string_view pattern, std::string_view path);

/// The paths of `sorted` that the pattern finds below the folder `base` ("" or with a slash at its end).
std::vector<std::string> find_hub_files(const std::string& base, const std::string& pattern,
                                        const std::vector<std::string>& sorted);

/// The patterns for a folder in which only names tell the splits, as `datasets` tries them. Throws
/// std::invalid_argument with the end of a sentence if these are files for other readers than those of text.
HubPatterns default_hub_patterns(const std::string& base, const std::vector<std::string>& sorted);

}  // namespace titan
