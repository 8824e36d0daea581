// Files that are shown rather than kept: readers see the old one or the new one, and nobody waits for the disk. What
// must outlive a power cut is written by write_file_atomically (filesystem.h).
#pragma once

#include <filesystem>
#include <string_view>

namespace titan {

/// Writes beside `path` and renames over it, without syncing. Throws Error(storage) "cannot write PATH: reason".
void replace_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace titan
