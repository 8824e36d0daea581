// What a command writes must not fall into the corpus that it reads. Private to data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace titan {

/// Throws Error(bad_config) when writing `output`, there already or not, would change the corpus that `path` (a file, a
/// folder or a glob) names: it is one of its files, under whatever name or link, or whatever reads `path` next would
/// read it as well. `option` named the output. Throws as find_text_files does.
void refuse_output_in_corpus(const std::string& path, const std::filesystem::path& output, std::string_view option);

}  // namespace titan
