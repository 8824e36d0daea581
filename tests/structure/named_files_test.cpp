// A file that a comment names exists: who follows the name finds it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// The headers and sources that comments of `file` name and that do not exist: "src/a/x.cpp:3: y.h". A name is the end
/// of a path in `files`, or a path in the checkout.
std::vector<std::string> missing_files(const SourceFile& file, const std::vector<SourceFile>& files) {
  static const std::regex name(R"([\w./]*\w\.(?:h|cpp|cu)\b)");
  const auto exists = [&](const std::string& path) {
    return std::filesystem::exists(checkout() / path) ||
           std::any_of(files.begin(), files.end(), [&](const SourceFile& f) { return f.shown.ends_with("/" + path); });
  };
  std::vector<std::string> missing;
  const std::vector<std::string> lines = split(file.text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string comment = lines[i].substr(std::min(lines[i].find("//"), lines[i].size()));
    for (std::sregex_iterator at(comment.begin(), comment.end(), name), end; at != end; ++at) {
      if (!exists(at->str())) missing.push_back(fmt::format("{}:{}: {}", file.shown, i + 1, at->str()));
    }
  }
  return missing;
}

TEST(NamedFiles, EveryFileThatACommentNamesExists) {
  const std::vector<SourceFile> files = all_sources();
  std::vector<std::string> missing;
  for (const SourceFile& file : files) {
    for (std::string& place : missing_files(file, files)) missing.push_back(std::move(place));
  }
  EXPECT_TRUE(missing.empty()) << join(missing, "\n");
}

TEST(NamedFiles, ANameOfNoFileIsFoundWithFileAndLine) {
  const SourceFile file{"a", "src/a/x.cpp", "#include \"gone.h\"\nint x;  // as in a/y.h; see x.cpp and cpu_*.cpp\n"};
  EXPECT_EQ(missing_files(file, {file}), std::vector<std::string>{"src/a/x.cpp:2: a/y.h"});
}

}  // namespace
}  // namespace titan
