// Folders as the package `datasets` writes and downloads them. Private to data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "text_files.h"

namespace titan {

/// Whether the folder is one of `save_to_disk`.
bool is_saved_dataset(const std::filesystem::path& folder);
inline constexpr std::string_view kSavedDataset =
    "this is a folder of datasets' save_to_disk, whose Arrow files are not read; convert it with python -c \"import "
    "datasets; datasets.load_from_disk('FOLDER').to_json('FILE.jsonl')\"";

/// Whether a file of this name describes a data set and holds none of its records.
bool describes_dataset(const std::string& name);

/// In a data set's folder of the hub, keeps the files that `datasets` reads for training and says so in
/// `found.notices`: those that README.md names, or those of the split "train". `others`: files that are not read here.
/// Throws Error(bad_data) if README.md names several configurations, or if the files are of a kind that is not read.
void choose_hub_files(const std::filesystem::path& folder, TextFiles& found,
                      const std::vector<std::filesystem::path>& others);

}  // namespace titan
