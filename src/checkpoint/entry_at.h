// What lies under a name, a link as the link it is.
#pragma once

#include <optional>

#include "titan/checkpoint/storage.h"

namespace titan {

/// From the list of the folder that `path` lies in; nothing when it is not there. Throws StorageError.
inline std::optional<StorageEntry> entry_at(Storage& storage, const std::filesystem::path& path) {
  for (StorageEntry& entry : storage.list(path.has_parent_path() ? path.parent_path() : ".")) {
    if (entry.name == path.filename()) return std::move(entry);
  }
  return std::nullopt;
}

}  // namespace titan
