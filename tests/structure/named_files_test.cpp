// A file that a comment names exists, and has in it what the comment says it has: who follows the name finds it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// All comments of `file` as one text, without the slashes. A comment of several lines is one line of it.
std::string comments_of(const SourceFile& file) {
  std::string text;
  for (const std::string& line : split(file.text, '\n')) {
    const size_t start = line.find("//");
    if (start == std::string::npos || line.find_first_not_of(' ') < start) text += '\n';
    if (start == std::string::npos) continue;
    text += line.substr(std::min(line.find_first_not_of("/< ", start), line.size())) + ' ';
  }
  return text;
}

/// Whether `word`, of a comment, can only be a name of the code: `x`, x_y, x::y or kX.
bool is_name(const std::string& word) {
  const bool is_constant = word.size() > 1 && word[0] == 'k' && std::isupper(static_cast<unsigned char>(word[1])) != 0;
  return is_constant || word.find_first_of("`_:") != word.npos;
}

/// Where comments of `file` say "x of y.h", "x in y.h" or "x (y.h)" of a name x, y.h exists and the word x is not in
/// it. A comment that does not say where in the tree y.h is means any file of this name.
std::vector<std::string> misplaced_names(const SourceFile& file, const std::vector<SourceFile>& files) {
  static const std::regex reference(R"((`?(?:\w+::)*(\w+)`?) (?:of |in |\()([\w./]*\w\.(?:h|cpp|cu))\b)");
  const std::string comments = comments_of(file);
  std::vector<std::string> misplaced;
  for (std::sregex_iterator at(comments.begin(), comments.end(), reference), end; at != end; ++at) {
    if (!is_name(at->str(1))) continue;
    const std::string path = at->str(3);
    const std::regex word("\\b" + at->str(2) + "\\b");
    bool exists = false, has = false;
    for (const SourceFile& other : files) {
      if (!("/" + other.shown).ends_with("/" + path)) continue;
      exists = true;
      has = has || std::regex_search(other.text, word);
    }
    if (exists && !has) misplaced.push_back(fmt::format("{}: {} is not in {}", file.shown, at->str(1), path));
  }
  return misplaced;
}

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

/// `find` finds nothing in any source. It is called with each, and with all.
template <class Find>
void expect_none(const Find& find) {
  const std::vector<SourceFile> files = all_sources();
  for (const SourceFile& file : files) EXPECT_EQ(join(find(file, files), "\n"), "");
}

TEST(NamedFiles, EveryFileThatACommentNamesExists) { expect_none(missing_files); }

TEST(NamedFiles, ANameOfNoFileIsFoundWithFileAndLine) {
  const SourceFile file{"a", "src/a/x.cpp", "#include \"gone.h\"\nint x;  // as in a/y.h; see x.cpp and cpu_*.cpp\n"};
  EXPECT_EQ(missing_files(file, {file}), std::vector<std::string>{"src/a/x.cpp:2: a/y.h"});
}

TEST(NamedFiles, WhatACommentSaysIsInAFileIsInIt) { expect_none(misplaced_names); }

TEST(NamedFiles, ANameThatIsNotInTheFileIsFoundAcrossLinesOfAComment) {
  const SourceFile header{"a", "include/titan/a/y.h", "int here();\n"};
  const SourceFile file{
      "a", "src/a/x.cpp",
      "/// As `here` of a/y.h, B::here (y.h) and `gone`\n/// of y.h. No name (y.h), but kGone in y.h. `far`\n"
      "int x;  // of y.h\n"};
  EXPECT_EQ(misplaced_names(file, {file, header}),
            (std::vector<std::string>{"src/a/x.cpp: `gone` is not in y.h", "src/a/x.cpp: kGone is not in y.h"}));
}

}  // namespace
}  // namespace titan
