#include "sources.h"

#include <filesystem>

#include "support/checkout.h"
#include "titan/base/filesystem.h"

namespace titan {

std::vector<SourceFile> all_sources() {
  const std::filesystem::path root = checkout();
  std::vector<SourceFile> files;
  for (const std::filesystem::path& top : {root / "include" / "titan", root / "src"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) {
      const std::filesystem::path inside = entry.path().lexically_relative(top);
      if (!entry.is_regular_file() || inside.begin() == --inside.end()) continue;
      files.push_back(
          {inside.begin()->string(), entry.path().lexically_relative(root).string(), read_file(entry.path())});
    }
  }
  return files;
}

}  // namespace titan
