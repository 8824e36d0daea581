// A command's output must not become part of the corpus that it reads.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// An output file, existing or not, and the option that named it.
struct NamedOutput {
  std::filesystem::path file;
  std::string_view option;
};

/// Throws Error(bad_config) if writing one of `outputs` would change the corpus that `path` (a file, a folder or a
/// glob) names: the output is one of its files (also via a link), or `path` would match it afterwards. Throws like
/// find_text_files, which scans the corpus once for all outputs.
void refuse_outputs_in_corpus(const std::string& path, const std::vector<NamedOutput>& outputs);

}  // namespace titan
