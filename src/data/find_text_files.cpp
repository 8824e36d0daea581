#include <fmt/format.h>
#include <glob.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/data/text_files.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhatWorks =
    "Give a .txt, .jsonl or .json (one record per line) file, a folder of them, or a glob";

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}. {}.", path, what, kWhatWorks));
}

TextFiles files_below(const std::string& folder) {
  TextFiles found;
  try {
    for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator(); ++at) {
      bool hidden = at->path().filename().string().starts_with('.');
      if (at->is_directory() && hidden) at.disable_recursion_pending();
      if (hidden || !at->is_regular_file()) continue;
      if (text_form(at->path()) != TextForm::none) {
        found.files.push_back(at->path());
        continue;
      }
      std::string name = at->path().filename().string();
      if (found.left_out++ == 0 || name < found.left_out_example) found.left_out_example = name;
    }
  } catch (const fs::filesystem_error& problem) {
    fail(folder, problem.code().message());
  }
  if (!found.files.empty()) return found;
  if (found.left_out == 0) fail(folder, "the folder holds no files");
  fail(folder, fmt::format("the folder holds no supported file, only such as {}", found.left_out_example));
}

std::vector<fs::path> files_matching(const std::string& pattern) {
  glob_t matches{};
  int result = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<fs::path> files;
  for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) files.emplace_back(matches.gl_pathv[i]);
  ::globfree(&matches);
  std::erase_if(files, [](const fs::path& file) { return !fs::is_regular_file(file); });
  if (files.empty()) fail(pattern, "no file matches");
  return files;
}

}  // namespace

TextForm text_form(const fs::path& path) {
  const std::string extension = to_lower(path.extension().string());
  if (extension == ".txt") return TextForm::whole;
  return extension == ".jsonl" || extension == ".json" ? TextForm::records : TextForm::none;
}

TextFiles find_text_files(const std::string& path) {
  std::error_code problem;
  fs::file_status status = fs::status(path, problem);
  TextFiles found;
  if (fs::is_directory(status)) {
    found = files_below(path);
  } else if (fs::is_regular_file(status)) {
    found.files = {path};
  } else if (fs::exists(status)) {
    fail(path, "this is neither a file nor a folder, and text is read more than once");
  } else if (path.find_first_of("*?[") != path.npos) {
    found.files = files_matching(path);
  } else {
    fail(path, problem ? problem.message() : "there is no such file");
  }
  std::vector<fs::path>& files = found.files;
  for (const fs::path& file : files) {
    if (text_form(file) != TextForm::none) continue;
    const std::string name = file.filename().string();
    if (!file.has_extension())
      fail(path, fmt::format("the name {} does not say what kind of text the file holds", name));
    fail(path, fmt::format("{} files are not built yet ({})", file.extension().string(), name));
  }
  std::sort(files.begin(), files.end());
  bool all_empty =
      std::all_of(files.begin(), files.end(), [](const fs::path& file) { return fs::file_size(file) == 0; });
  if (all_empty)
    fail(path, files.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", files.size()));
  return found;
}

}  // namespace titan
