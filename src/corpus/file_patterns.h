// Finds files by a pattern, as a shell with globstar does. Private to corpus.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace titan {

/// The files and folders that `pattern` finds, sorted by their names as text: * ? and [set] as glob(3) knows them; a
/// part ** stands for any number of folders, also for none, and at the end for all that is below. Links to folders are
/// followed. A hidden name is found only by a part that begins with its dot. Throws std::filesystem::filesystem_error
/// for a folder below ** that cannot be read.
std::vector<std::filesystem::path> paths_matching(const std::string& pattern);

}  // namespace titan
