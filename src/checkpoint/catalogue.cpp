#include "titan/checkpoint/catalogue.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/metadata.h"
#include "titan/checkpoint/safetensors.h"

namespace titan {
namespace {

constexpr int64_t kNoStep = -1;

bool contains(const std::vector<StorageEntry>& entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(), [&](const StorageEntry& entry) { return entry.name == name; });
}

bool is_link(Storage& storage, const std::filesystem::path& path) {
  const std::optional<StorageEntry> entry = entry_at(storage, path);
  return entry && entry->is_link;
}

struct Contents {
  bool manifest = false, checkpoint = false, safetensors = false;
};

/// The parts of a checkpoint that a folder has; nothing if it cannot be listed.
std::optional<Contents> look_into(Storage& storage, const std::filesystem::path& folder) {
  try {
    const std::vector<StorageEntry> files = storage.list(folder);
    return Contents{contains(files, kManifestFile), is_checkpoint(files), is_safetensors_folder(files)};
  } catch (const StorageError&) {
    return std::nullopt;
  }
}

/// Deletes the manifest first, so that the remains after a crash are never loaded as complete.
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

/// Renames an interrupted replacement back unless the name is taken; returns true if it did.
bool put_back(Storage& storage, const std::filesystem::path& root, const std::string& name, int64_t step) {
  const std::vector<StorageEntry> files = storage.list(root / name);
  const bool whole = contains(files, kManifestFile) || contains(files, kExportManifest);
  if (!whole || contains(storage.list(root), step_folder(step))) return false;
  storage.rename(root / name, root / step_folder(step));
  storage.sync_folder(root);
  return true;
}

/// Calls `act` with each leftover folder, and its step if it was being deleted. Returns the failures.
std::vector<std::string> for_leftovers(Storage& storage, const std::filesystem::path& root,
                                       const std::function<void(const std::string& name, int64_t step)>& act) {
  std::vector<std::string> failures;
  std::vector<StorageEntry> entries;
  try {
    entries = storage.list(root);
  } catch (const StorageError&) {  // the load, which comes next, reports it on all ranks
    return failures;
  }
  for (const StorageEntry& entry : entries) {
    const bool deleting = entry.name.starts_with(kDeletingPrefix);
    const int64_t step = deleting ? step_being_deleted(entry.name).value_or(kNoStep) : kNoStep;
    const bool is_ours = entry.is_link ? step != kNoStep : entry.is_folder;  // a link was a step that has been replaced
    if (!is_ours || !(deleting || entry.name.starts_with(kSavingPrefix))) continue;
    try {
      act(entry.name, step);
    } catch (const StorageError& error) {
      failures.push_back(error.what());
    }
  }
  return failures;
}

/// Restores or removes a folder that was being deleted or replaced.
void finish_deleting(Storage& storage, const std::filesystem::path& root, const std::string& name, int64_t step) {
  if (step != kNoStep && put_back(storage, root, name, step)) return;
  // An export is removed if another one has its name; it may be partly deleted.
  const bool keeps = step != kNoStep &&
                     (is_link(storage, root / name) || !is_safetensors_folder(storage.list(root / step_folder(step))));
  keeps ? put_away_replaced(storage, root, root / name, step) : storage.remove_folder(root / name);
}

bool holds_model_alone(Storage& storage, const std::filesystem::path& folder) {
  try {
    const nlohmann::ordered_json facts = read_manifest(storage.read_all(folder / kManifestFile)).facts;
    return facts.is_object() && facts.value(kModelAlone, false);
  } catch (const std::exception&) {  // a damaged one counts like any other
    return false;
  }
}

/// Renames a folder to `prefix`-STEP, with a number appended if that is taken.
void rename_aside(Storage& storage, const std::filesystem::path& root, const std::filesystem::path& folder,
                  std::string_view prefix, int64_t step) {
  const std::vector<StorageEntry> entries = storage.list(root);
  std::string name = fmt::format("{}{}", prefix, step);
  for (int64_t i = 2; contains(entries, name); ++i) name = fmt::format("{}{}.{}", prefix, step, i);
  storage.rename(folder, root / name);
  storage.sync_folder(root);
}

}  // namespace

bool is_checkpoint(const std::vector<StorageEntry>& files) {
  return contains(files, kManifestFile) || contains(files, kIndexFile);
}

bool holds_checkpoint(Storage& storage, const std::filesystem::path& folder) {
  const std::optional<Contents> contents = look_into(storage, folder);
  return contents && contents->checkpoint;
}

std::vector<FoundCheckpoint> find_checkpoints(Storage& storage, const std::filesystem::path& root) {
  std::vector<FoundCheckpoint> found;
  for (const StorageEntry& entry : storage.list(root)) {
    const std::optional<int64_t> step = step_of(entry.name);
    if (!step || !(entry.is_folder || entry.is_link)) continue;
    const std::optional<Contents> contents =
        entry.is_folder ? look_into(storage, root / entry.name) : std::nullopt;  // otherwise a dangling link
    const bool is_ours = !contents || contents->checkpoint;
    if (is_ours || contents->safetensors) {
      const bool is_unseen = entry.is_folder && !contents;
      found.push_back({*step, contents && contents->manifest, entry.is_link, !is_ours, is_unseen});
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::string newest_inside(Storage& storage, const std::filesystem::path& folder) {
  for (const std::filesystem::path& root : {folder, folder / "checkpoint"}) {
    try {
      std::vector<FoundCheckpoint> found = find_checkpoints(storage, root);
      std::erase_if(found, [](const FoundCheckpoint& one) { return one.is_export; });
      if (found.empty()) continue;
      return fmt::format("it is not a checkpoint, but holds some: name one, such as the newest, {}",
                         (root / step_folder(found.front().step)).string());
    } catch (const StorageError&) {  // nothing to name
    }
  }
  return {};
}

void set_aside(Storage& storage, const std::filesystem::path& root, int64_t step) {
  for (const StorageEntry& entry : storage.list(root)) {
    if (entry.name == step_folder(step) && entry.is_link) return;
  }
  rename_aside(storage, root, root / step_folder(step), kDamagedPrefix, step);
}

void expect_step(const std::filesystem::path& folder, int64_t step) {
  const std::optional<int64_t> named = step_of(folder.filename().string());
  if (!named || *named == 0 || *named == step) return;
  throw DamageError(fmt::format("it holds step {}, not the step in its name: rename it to {}, or move it away", step,
                                step_folder(step)));
}

void expect_no_file(Storage& storage, const std::filesystem::path& folder) {
  const std::optional<StorageEntry> entry = entry_at(storage, folder);
  if (!entry || entry->is_folder || entry->is_link) return;
  throw StorageError("save a checkpoint under the name of a file (move it away),", folder, ENOTDIR);
}

std::vector<std::string> files_in_the_way(Storage& storage, const std::filesystem::path& root) {
  std::vector<std::string> sentences;
  try {
    for (const StorageEntry& entry : storage.list(root)) {
      const std::optional<int64_t> step = step_of(entry.name);
      if (!step || entry.is_folder || entry.is_link) continue;
      sentences.push_back(
          fmt::format("{} is a file, not a checkpoint: it is left alone, and step {} cannot be saved until it is moved",
                      (root / entry.name).string(), *step));
    }
  } catch (const StorageError&) {  // reported by the load
  }
  return sentences;
}

void put_away_replaced(Storage& storage, const std::filesystem::path& root, const std::filesystem::path& folder,
                       int64_t step) {
  if (is_link(storage, folder) || is_safetensors_folder(storage.list(folder))) {
    return rename_aside(storage, root, folder, kReplacedPrefix, step);
  }
  storage.remove_folder(folder);
}

std::vector<std::string> give_back(Storage& storage, const std::filesystem::path& root) {
  return for_leftovers(storage, root, [&](const std::string& name, int64_t step) {
    if (step != kNoStep) put_back(storage, root, name, step);
  });
}

std::vector<std::string> clean_leftovers(Storage& storage, const std::filesystem::path& root) {
  return for_leftovers(storage, root,
                       [&](const std::string& name, int64_t step) { finish_deleting(storage, root, name, step); });
}

std::vector<int64_t> put_aside_later(Storage& storage, const std::filesystem::path& root, int64_t step) {
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& found : find_checkpoints(storage, root)) {
    if (found.step <= step) continue;
    rename_aside(storage, root, root / step_folder(found.step), kReplacedPrefix, found.step);
    steps.push_back(found.step);
  }
  return steps;
}

std::vector<std::string> delete_old(Storage& storage, const std::filesystem::path& root, const Retention& retention,
                                    int64_t newest) {
  if (retention.keep_latest <= 0) return {};
  std::vector<std::string> failures = for_leftovers(storage, root, [&](const std::string& name, int64_t step) {
    if (name.starts_with(kDeletingPrefix)) finish_deleting(storage, root, name, step);
  });
  int64_t kept = 0;
  bool seen_verified = false, seen_trusted = !retention.trusted;
  try {
    for (const FoundCheckpoint& found : find_checkpoints(storage, root)) {
      if (found.step > newest || found.is_export) continue;
      if (found.has_manifest && holds_model_alone(storage, root / step_folder(found.step))) continue;
      // Newer ones without a manifest cannot be verified, so the newest that can is kept beside them.
      const bool newest_verified = found.has_manifest && !seen_verified;
      seen_verified = seen_verified || found.has_manifest;
      const bool newest_trusted = !seen_trusted && found.has_manifest && found.step <= *retention.trusted;
      seen_trusted = seen_trusted || newest_trusted;
      const bool special = retention.keep_every > 0 && found.step % retention.keep_every == 0;
      if (kept < retention.keep_latest || newest_verified || special || found.is_link || found.is_unseen) {
        ++kept;
        continue;
      }
      if (newest_trusted) continue;
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
