#include "titan/checkpoint/catalogue.h"

#include <algorithm>
#include <optional>

#include "folder_names.h"
#include "titan/checkpoint/commit.h"

namespace titan {
namespace {

bool contains(const std::vector<StorageEntry>& entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(), [&](const StorageEntry& entry) { return entry.name == name; });
}

struct Contents {
  bool manifest = false, index = false;
};

/// What a folder that is named like a checkpoint has of one. Nothing: it cannot be looked into now.
std::optional<Contents> look_into(Storage& storage, const std::filesystem::path& folder) {
  try {
    const std::vector<StorageEntry> files = storage.list(folder);
    return Contents{contains(files, kManifestFile), contains(files, kIndexFile)};
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

/// Manifest first: what is left after a crash is never taken for a whole checkpoint.
void delete_checkpoint(Storage& storage, const std::filesystem::path& root, int64_t step) {
  const std::filesystem::path folder = root / step_folder(step);
  for (const char* marker : {kManifestFile, kIndexFile}) storage.remove(folder / marker);
  storage.sync_folder(folder);
  const std::filesystem::path doomed = root / fmt::format("{}{}", kDeletingPrefix, step);
  storage.remove_folder(doomed);
  storage.rename(folder, doomed);
  storage.remove_folder(doomed);
  storage.sync_folder(root);
}

/// The step of "deleting-12" or "deleting-12-RUN".
std::optional<int64_t> step_being_deleted(std::string_view name) {
  const std::string_view rest = name.substr(kDeletingPrefix.size());
  return step_of(std::string(kStepPrefix) + std::string(rest.substr(0, rest.find('-'))));
}

}  // namespace

std::vector<FoundCheckpoint> find_checkpoints(Storage& storage, const std::filesystem::path& root) {
  std::vector<FoundCheckpoint> found;
  for (const StorageEntry& entry : storage.list(root)) {
    const std::optional<int64_t> step = step_of(entry.name);
    if (!step || !(entry.is_folder || entry.is_link)) continue;
    const std::optional<Contents> contents =
        entry.is_folder ? look_into(storage, root / entry.name) : std::nullopt;  // otherwise a link that leads nowhere
    if (!contents || contents->manifest || contents->index) {
      found.push_back({*step, contents && contents->manifest, entry.is_link});
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::string newest_inside(Storage& storage, const std::filesystem::path& folder) {
  for (const std::filesystem::path& root : {folder, folder / "checkpoint"}) {
    try {
      const std::vector<FoundCheckpoint> found = find_checkpoints(storage, root);
      if (found.empty()) continue;
      return fmt::format("it is no checkpoint, but holds some: name one, such as the newest, {}",
                         (root / step_folder(found.front().step)).string());
    } catch (const StorageError&) {  // nothing to name, then
    }
  }
  return {};
}

void set_aside(Storage& storage, const std::filesystem::path& root, int64_t step) {
  const std::vector<StorageEntry> entries = storage.list(root);
  for (const StorageEntry& entry : entries) {
    if (entry.name == step_folder(step) && entry.is_link) return;
  }
  std::string name = fmt::format("{}{}", kDamagedPrefix, step);
  for (int64_t i = 2; contains(entries, name); ++i) name = fmt::format("{}{}.{}", kDamagedPrefix, step, i);
  storage.rename(root / step_folder(step), root / name);
  storage.sync_folder(root);
}

std::vector<std::string> clean_leftovers(Storage& storage, const std::filesystem::path& root) {
  std::vector<std::string> failures;
  std::vector<StorageEntry> entries;
  try {
    entries = storage.list(root);
  } catch (const StorageError&) {  // loading, which comes next, says so on all ranks
    return failures;
  }
  for (const StorageEntry& entry : entries) {
    const bool deleting = entry.name.starts_with(kDeletingPrefix);
    if (!entry.is_folder || entry.is_link || !(deleting || entry.name.starts_with(kSavingPrefix))) continue;
    try {
      const std::optional<int64_t> step = deleting ? step_being_deleted(entry.name) : std::nullopt;
      const bool whole = step && contains(storage.list(root / entry.name), kManifestFile);
      if (whole && !contains(entries, step_folder(*step))) {
        storage.rename(root / entry.name, root / step_folder(*step));
        storage.sync_folder(root);
      } else {
        storage.remove_folder(root / entry.name);
      }
    } catch (const StorageError& error) {
      failures.push_back(error.what());
    }
  }
  return failures;
}

std::vector<std::string> delete_old(Storage& storage, const std::filesystem::path& root, const Retention& retention,
                                    int64_t newest) {
  std::vector<std::string> failures;
  if (retention.keep_latest <= 0) return failures;
  int64_t kept = 0;
  bool seen_verified = false;
  try {
    for (const FoundCheckpoint& found : find_checkpoints(storage, root)) {
      if (found.step > newest) continue;
      const bool newest_verified = found.has_manifest && !seen_verified;
      seen_verified = seen_verified || found.has_manifest;
      const bool special = retention.keep_every > 0 && found.step % retention.keep_every == 0;
      if (kept < retention.keep_latest || newest_verified || special || found.is_link) {
        ++kept;
        continue;
      }
      try {
        delete_checkpoint(storage, root, found.step);
      } catch (const StorageError& error) {
        failures.push_back(fmt::format("step {} was to be deleted: {}", found.step, error.what()));
      }
    }
  } catch (const StorageError& error) {
    failures.push_back(error.what());
  }
  return failures;
}

}  // namespace titan
