// A save stays short to read: docs/checkpoints.md lists the types between a step and the disk, and there are few.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <regex>
#include <set>
#include <utility>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

constexpr size_t kMostTypes = 15;
/// Headers that are about saves alone; the other types of a save are in headers that also serve loads.
constexpr std::array kHeaders{"include/titan/checkpoint/checkpointer.h", "include/titan/checkpoint/save.h",
                              "include/titan/checkpoint/commit.h", "src/checkpoint/state_snapshot.h",
                              "src/train/run_checkpoints.h"};

/// A type and the file that defines it.
using Place = std::pair<std::string, std::string>;

/// The types that a header defines, but for those within others.
std::set<Place> types_in(const SourceFile& file) {
  static const std::regex definition(R"((?:^|\n)(?:struct|class|enum class) (\w+)[^;\n]*\{)");
  std::set<Place> types;
  for (std::sregex_iterator at(file.text.begin(), file.text.end(), definition), end; at != end; ++at) {
    types.emplace(at->str(1), file.shown);
  }
  return types;
}

/// The rows of a table of types: "| `type` | what it is | `file` |".
std::set<Place> listed_in(const std::string& page) {
  static const std::regex row(R"(\n\| `(\w+)` \| [^|]* \| `([\w./]+\.h)` \|)");
  std::set<Place> types;
  for (std::sregex_iterator at(page.begin(), page.end(), row), end; at != end; ++at) {
    types.emplace(at->str(1), at->str(2));
  }
  return types;
}

TEST(SaveTypes, TheTableListsThemAllAndTheyAreFew) {
  const std::string page = read_file(checkout() / "docs/checkpoints.md");
  const std::set<Place> listed = listed_in(page);
  EXPECT_LE(listed.size(), kMostTypes);
  EXPECT_NE(page.find(fmt::format("a save has {} types", listed.size())), std::string::npos) << listed.size();
  std::set<Place> defined, of_saves;
  for (const SourceFile& file : all_sources()) {
    const std::set<Place> types = types_in(file);
    defined.insert(types.begin(), types.end());
    if (std::find(kHeaders.begin(), kHeaders.end(), file.shown) != kHeaders.end()) {
      of_saves.insert(types.begin(), types.end());
    }
  }
  EXPECT_GT(of_saves.size(), kHeaders.size());
  for (const auto& [type, file] : listed) EXPECT_TRUE(defined.contains({type, file})) << file << " has no " << type;
  for (const auto& [type, file] : of_saves) {
    EXPECT_TRUE(listed.contains({type, file})) << "docs/checkpoints.md does not list " << type << " of " << file;
  }
}

TEST(SaveTypes, DefinitionsAreFoundAndDeclarationsAndInnerTypesAreNot) {
  const SourceFile file{"a", "a.h",
                        "struct A {\n  struct B {};\n};\nclass C;\nenum class D {\n};\nclass E : public A {\n"};
  EXPECT_EQ(types_in(file), (std::set<Place>{{"A", "a.h"}, {"D", "a.h"}, {"E", "a.h"}}));
}

}  // namespace
}  // namespace titan
