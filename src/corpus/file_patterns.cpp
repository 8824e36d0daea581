#include "file_patterns.h"

#include <glob.h>

#include <algorithm>
#include <set>
#include <system_error>

namespace titan {
namespace {

namespace fs = std::filesystem;

/// What a pattern without ** finds.
std::vector<std::string> glob_paths(const std::string& pattern) {
  glob_t matches{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::string> paths;
  for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) paths.emplace_back(matches.gl_pathv[i]);
  ::globfree(&matches);
  return paths;
}

/// A pattern that finds `path` alone.
std::string escaped(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// A folder and the folders below it, without hidden ones. Their names have a slash at the end, or are empty: the
/// current folder.
class FolderTree {
 public:
  explicit FolderTree(const std::string& top) { add(top); }
  const std::vector<std::string>& folders() const { return folders_; }

 private:
  void add(const std::string& folder) {
    const fs::path here = folder.empty() ? "." : folder;
    const fs::path real = fs::canonical(here);
    if (std::find(above_.begin(), above_.end(), real) != above_.end()) return;  // a link that leads back
    above_.push_back(real);
    folders_.push_back(folder);
    for (const fs::directory_entry& entry : fs::directory_iterator(here)) {
      const std::string name = entry.path().filename().string();
      std::error_code ignored;
      if (!name.starts_with('.') && entry.is_directory(ignored)) add(folder + name + "/");
    }
    above_.pop_back();
  }

  std::vector<std::string> folders_;
  std::vector<fs::path> above_;
};

/// The place of the first part that is **; npos without one.
size_t first_stars(const std::string& pattern) {
  for (size_t at = pattern.find("**"); at != pattern.npos; at = pattern.find("**", at + 1)) {
    const bool begins = at == 0 || pattern[at - 1] == '/';
    const bool ends = at + 2 == pattern.size() || pattern[at + 2] == '/';
    if (begins && ends) return at;
  }
  return pattern.npos;
}

void expand(const std::string& pattern, std::set<std::string>& found) {
  const size_t stars = first_stars(pattern);
  if (stars == pattern.npos) {
    for (std::string& path : glob_paths(pattern)) found.insert(std::move(path));
    return;
  }
  const std::string before = pattern.substr(0, stars);
  const size_t after = pattern.find_first_not_of('/', stars + 2);
  const std::string rest = after == pattern.npos ? "*" : pattern.substr(after);
  for (const std::string& top : before.empty() ? std::vector<std::string>{""} : glob_paths(before)) {
    const FolderTree tree(top);
    for (const std::string& folder : tree.folders()) expand(escaped(folder) + rest, found);
  }
}

}  // namespace

std::vector<fs::path> paths_matching(const std::string& pattern) {
  std::set<std::string> found;
  expand(pattern, found);
  return {found.begin(), found.end()};
}

}  // namespace titan
