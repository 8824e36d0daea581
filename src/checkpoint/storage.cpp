#include "titan/checkpoint/storage.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace titan {
namespace {

/// What is read as a whole describes other bytes. A file that claims more is no such thing, and memory is not asked
/// for.
constexpr int64_t kMostReadAtOnce = int64_t{1} << 32;

}  // namespace

StorageError::StorageError(std::string_view what, const std::filesystem::path& path, int reason)
    : Error(ExitCode::storage, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(reason))),
      reason_(reason) {}

void WritableFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const int64_t written = write_some(bytes);
    TITAN_CHECK(written > 0 && written <= static_cast<int64_t>(bytes.size()), written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

std::string Storage::read_all(const std::filesystem::path& file) {
  const std::unique_ptr<ReadableFile> opened = open(file);
  if (opened->size() > kMostReadAtOnce) throw StorageError("read", file, EFBIG);
  std::string bytes(static_cast<size_t>(opened->size()), '\0');
  opened->read(0, bytes);
  return bytes;
}

void Storage::write_all(const std::filesystem::path& file, std::string_view bytes) {
  const std::unique_ptr<WritableFile> created = create(file);
  created->write(bytes);
  created->sync();
}

void Storage::sync_way_to(const std::filesystem::path& folder) {
  // Of a folder that cannot be synced, or not be looked into, nothing on the way is new.
  constexpr std::array kCannotBeNew{EACCES, EPERM, EROFS, EINVAL};
  std::vector<std::filesystem::path> synced;
  for (std::filesystem::path path = folder; path.has_relative_path() && !synced_ways_.contains(path);
       path = path.parent_path()) {
    try {
      sync_folder(path.parent_path());
    } catch (const StorageError& error) {
      if (std::find(kCannotBeNew.begin(), kCannotBeNew.end(), error.reason()) == kCannotBeNew.end()) throw;
    }
    synced.push_back(path);
  }
  synced_ways_.insert(synced.begin(), synced.end());
}

void Storage::remove_folder(const std::filesystem::path& folder) {
  for (const StorageEntry& entry : list(folder)) {
    const std::filesystem::path path = folder / entry.name;
    entry.is_folder && !entry.is_link ? remove_folder(path) : remove(path);
  }
  remove(folder);
}

}  // namespace titan
