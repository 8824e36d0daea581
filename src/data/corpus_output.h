// What a command writes must not fall into the corpus that it reads. Private to data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// A file to be written, there already or not, and the option that named it.
struct NamedOutput {
  std::filesystem::path file;
  std::string_view option;
};

/// Throws Error(bad_config) when writing one of `outputs` would change the corpus that `path` (a file, a folder or a
/// glob) names: it is one of its files, under whatever name or link, or whatever reads `path` next would read it as
/// well. Throws as find_text_files does, which looks through the corpus once for all outputs.
void refuse_outputs_in_corpus(const std::string& path, const std::vector<NamedOutput>& outputs);

}  // namespace titan
