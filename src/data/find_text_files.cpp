#include <fmt/format.h>
#include <glob.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/data/text_files.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhatWorks =
    "Give a .txt, .jsonl or .json (one record per line) file, a folder of them, or a glob";

[[noreturn]] void fail(const std::string& path, std::string_view what) {
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}. {}.", path, what, kWhatWorks));
}

bool is_supported(const fs::path& path) {
  auto extension = path.extension();
  return extension == ".txt" || extension == ".jsonl" || extension == ".json";
}

std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> files;
  fs::path example;
  try {
    for (auto at = fs::recursive_directory_iterator(folder); at != fs::recursive_directory_iterator(); ++at) {
      bool hidden = at->path().filename().string().starts_with('.');
      if (at->is_directory() && hidden) at.disable_recursion_pending();
      if (hidden || !at->is_regular_file()) continue;
      is_supported(at->path()) ? files.push_back(at->path()) : void(example = at->path().filename());
    }
  } catch (const fs::filesystem_error& problem) {
    fail(folder, problem.code().message());
  }
  if (files.empty() && example.empty()) fail(folder, "the folder holds no files");
  if (files.empty()) fail(folder, fmt::format("the folder holds no supported file, only such as {}", example.string()));
  return files;
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

std::vector<fs::path> find_text_files(const std::string& path) {
  std::error_code problem;
  fs::file_status status = fs::status(path, problem);
  std::vector<fs::path> files;
  if (fs::is_directory(status)) {
    files = files_below(path);
  } else if (fs::is_regular_file(status)) {
    files = {path};
  } else if (fs::exists(status)) {
    fail(path, "this is neither a file nor a folder, and text is read more than once");
  } else if (path.find_first_of("*?[") != path.npos) {
    files = files_matching(path);
  } else {
    fail(path, problem ? problem.message() : "there is no such file");
  }
  for (const fs::path& file : files) {
    if (!is_supported(file)) {
      fail(path, fmt::format("{} files are not built yet ({})",
                             file.has_extension() ? file.extension().string() : "such", file.filename().string()));
    }
  }
  std::sort(files.begin(), files.end());
  bool all_empty =
      std::all_of(files.begin(), files.end(), [](const fs::path& file) { return fs::file_size(file) == 0; });
  if (all_empty)
    fail(path, files.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", files.size()));
  return files;
}

}  // namespace titan
