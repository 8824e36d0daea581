#include "outputs.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <algorithm>

#include "file_source.h"
#include "titan/base/error.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;  // not an error: a file that is missing is not the same
  return fs::equivalent(a, b, ignored);
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : "."; }

/// Whether `file` is in or below the folder `top`, with links resolved and no hidden folder in between.
bool is_read_below(const fs::path& top, const fs::path& file) {
  std::error_code ignored;
  const fs::path way = fs::weakly_canonical(file, ignored).lexically_relative(fs::weakly_canonical(top, ignored));
  return !way.empty() &&
         std::none_of(way.begin(), way.end(), [](const fs::path& part) { return part.string().starts_with('.'); });
}

bool matches(const std::string& glob, const fs::path& file) {
  std::error_code ignored;
  const std::string pattern = fs::absolute(glob).lexically_normal().string();
  const auto fits = [&](const fs::path& spelled) {
    return ::fnmatch(pattern.c_str(), spelled.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
  };
  return fits(fs::absolute(file).lexically_normal()) || fits(fs::weakly_canonical(file, ignored));
}

/// Whether find_text_files would find `file` once it exists.
bool would_be_read(const std::string& path, const std::vector<fs::path>& files, const fs::path& file) {
  if (!fs::is_directory(path)) return matches(path, file);
  if (text_form(file) == TextForm::none || file.filename().string().starts_with('.')) return false;
  if (is_read_below(path, file)) return true;
  // `file` may be in a folder that is reached by a link out of the corpus folder.
  return std::any_of(files.begin(), files.end(),
                     [&](const fs::path& one) { return is_same(folder_of(one), folder_of(file)); });
}

void refuse_output(const std::string& path, const std::vector<fs::path>& files, const NamedOutput& output) {
  for (const fs::path& file : files) {
    if (!is_same(file, output.file)) continue;
    throw Error(ExitCode::bad_config, fmt::format("output {}: this is {}, which the command reads. Name another {}.",
                                                  output.file.string(), file.string(), output.option));
  }
  if (!would_be_read(path, files, output.file)) return;
  throw Error(ExitCode::bad_config, fmt::format("output {}: it would become a part of the corpus {}, and be read with "
                                                "it next time. Name a place outside with {}.",
                                                output.file.string(), path, output.option));
}

}  // namespace

void refuse_outputs_in_corpus(const std::string& path, const std::vector<NamedOutput>& outputs) {
  const std::vector<fs::path> files = find_text_files(path).files;
  for (const NamedOutput& output : outputs) refuse_output(path, files, output);
}

}  // namespace titan
