#include "titan/checkpoint/commit.h"

#include <cerrno>
#include <charconv>

#include "titan/checkpoint/catalogue.h"

namespace titan {
namespace {

/// Space for index, manifest and file-system rounding in addition to the data: this much and 1/64.
constexpr int64_t kSpareBytes = int64_t{1} << 20;

/// Verifies index and manifest in the renamed folder.
void read_back(Storage& storage, const std::filesystem::path& folder, const CheckpointIndex& index,
               const Manifest& manifest) {
  const Manifest written = read_manifest(storage.read_all(folder / kManifestFile));
  if (written.files != manifest.files || written.step != manifest.step) {
    throw DamageError(fmt::format("{} reads back differently", (folder / kManifestFile).string()));
  }
  for (const auto& [name, record] : written.files) CheckedReader(storage, folder / name, record);
  if (!(read_index(storage.read_all(folder / kIndexFile)) == index)) {
    throw DamageError(fmt::format("{} reads back differently", (folder / kIndexFile).string()));
  }
}

/// Renames an existing checkpoint of this step (the run resumed from an earlier one); returns the new name.
std::optional<std::filesystem::path> make_way(Storage& storage, const SavePlace& place) {
  for (const StorageEntry& entry : storage.list(place.root)) {
    if (entry.name != step_folder(place.step)) continue;
    const std::filesystem::path name = place.root / fmt::format("{}{}-{}", kDeletingPrefix, place.step, place.run);
    storage.rename(place.final(), name);
    return name;
  }
  return std::nullopt;
}

/// Failures are ignored: the next start removes what is left.
void remove_quietly(Storage& storage, const std::filesystem::path& folder) {
  try {
    storage.remove_folder(folder);
  } catch (const StorageError&) {
  }
}

}  // namespace

std::string data_file(int64_t rank, int64_t file) { return fmt::format("__{}_{}.distcp", rank, file); }

std::string step_folder(int64_t step) { return fmt::format("{}{}", kStepPrefix, step); }

std::optional<int64_t> step_of(std::string_view folder) {
  if (!folder.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = folder.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && step >= 0;
  return whole && step_folder(step) == folder ? std::optional(step) : std::nullopt;
}

std::filesystem::path SavePlace::temporary() const { return root / fmt::format("{}{}-{}", kSavingPrefix, step, run); }
std::filesystem::path SavePlace::final() const { return root / step_folder(step); }

void begin_save(Storage& storage, const SavePlace& place, int64_t bytes) {
  storage.make_folders(place.root);
  expect_no_file(storage, place.final());
  const int64_t needed = bytes + bytes / 64 + kSpareBytes;
  if (storage.free_bytes(place.root) < needed) {
    throw StorageError(fmt::format("write {} bytes of step {} to", needed, place.step), place.root, ENOSPC);
  }
  storage.remove_folder(place.temporary());  // left by a save of this run that failed
  storage.make_folders(place.temporary());
  storage.sync_way_to(place.root);
}

std::optional<FileRecord> write_data(Storage& storage, const SavePlace& place, int64_t rank,
                                     std::span<const SavedValue> values, size_t writes, const WrittenTensor& tensor,
                                     int64_t file) {
  if (values.empty() && writes == 0) return std::nullopt;
  HashingWriter writer(storage, place.temporary() / data_file(rank, file));
  for (const SavedValue& value : values) writer.write(value.blob);
  for (size_t i = 0; i < writes; ++i) write_tensor_blob(writer, tensor(i));
  return writer.finish();
}

FileRecord write_index_file(Storage& storage, const std::filesystem::path& folder, const CheckpointIndex& index) {
  HashingWriter writer(storage, folder / kIndexFile);
  write_index(index, [&](std::string_view bytes) { writer.write(bytes); });
  return writer.finish();
}

void commit_save(Storage& storage, const SavePlace& place, const CheckpointIndex& index,
                 std::map<std::string, FileRecord> files, nlohmann::ordered_json facts) {
  for (const auto& [name, end] : index.file_ends()) {
    const auto reported = files.find(name);
    if (reported != files.end() && reported->second.bytes == end) continue;
    throw Error(
        ExitCode::peer_failure,
        fmt::format("the ranks report other files than they were to write: {} of {} bytes is missing", name, end));
  }
  const std::filesystem::path temporary = place.temporary();
  files[kIndexFile] = write_index_file(storage, temporary, index);
  const Manifest manifest{place.step, place.run, std::move(facts), std::move(files)};
  storage.write_all(temporary / kManifestFile, write_manifest(manifest));
  storage.sync_folder(temporary);
  const std::optional<std::filesystem::path> replaced = make_way(storage, place);
  storage.rename(temporary, place.final());
  storage.sync_folder(place.root);
  read_back(storage, place.final(), index, manifest);
  try {
    if (replaced) put_away_replaced(storage, place.root, *replaced, place.step);
  } catch (const StorageError&) {  // cleaned up at the next start
  }
}

void abandon_save(Storage& storage, const SavePlace& place) { remove_quietly(storage, place.temporary()); }

}  // namespace titan
