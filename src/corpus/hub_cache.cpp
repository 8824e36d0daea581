// Folders in which the hub's client keeps what it downloads: snapshots/ has a folder for each revision, blobs/ what
// their links lead to, and refs/ the names of revisions.
#include <fmt/format.h>

#include <algorithm>

#include "hub_folder.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// The names of the revisions that are there, sorted.
std::vector<std::string> revisions_in(const fs::path& snapshots) {
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const fs::directory_entry& entry : fs::directory_iterator(snapshots, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && entry.is_directory(unreadable)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool is_hub_cache(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::is_directory(folder / name, ignored); };
  return has("snapshots") && (has("blobs") || has("refs"));
}

fs::path hub_revision(const fs::path& folder) {
  fs::path cache = folder.has_filename() ? folder : folder.parent_path();
  if (cache.filename() == "snapshots" && is_hub_cache(cache.parent_path())) cache = cache.parent_path();
  if (!is_hub_cache(cache)) return folder;
  const fs::path snapshots = cache / "snapshots", main = cache / "refs" / "main";
  const std::vector<std::string> names = revisions_in(snapshots);
  constexpr size_t kLongestRevision = 4096;
  std::error_code ignored;
  std::string wanted;
  if (fs::is_regular_file(main, ignored)) wanted = trim(read_text_file(main, ExitCode::bad_data, kLongestRevision));
  if (wanted.empty() && names.size() == 1) return snapshots / names[0];
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return snapshots / wanted;
  const std::string why = wanted.empty() ? "none is named by refs/main" : fmt::format("refs/main names {}", wanted);
  throw Error(
      ExitCode::bad_data,
      fmt::format("corpus {}: this is a folder of the hub's cache with the revisions {}, and {}. Name the folder "
                  "of one, such as {}.",
                  folder.string(), names.empty() ? "none" : join(names, ", "), why,
                  (snapshots / (names.empty() ? "REVISION" : names[0])).string()));
}

}  // namespace titan
