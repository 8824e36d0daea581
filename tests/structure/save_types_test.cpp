// A save stays short to read: docs/checkpoints.md lists the types between a step and the disk, and there are few.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

constexpr size_t kMostTypes = 17;
/// Outside the part `checkpoint`, a save passes through these.
const std::set<std::string> kHeadersAbove{"src/train/run_checkpoints.h", "include/titan/train/state_dict.h"};
/// Headers of `checkpoint` that are not on the way of a save's state: a new header is, unless it is named here.
const std::set<std::string> kHeadersBeside{
    // formats
    "include/titan/checkpoint/blob.h", "include/titan/checkpoint/metadata.h", "include/titan/checkpoint/pickle.h",
    "include/titan/checkpoint/safetensors.h", "src/checkpoint/index_names.h", "src/checkpoint/zip.h",
    // the storage, and how ranks meet
    "include/titan/checkpoint/storage.h", "include/titan/checkpoint/store_barrier.h",
    // loads, and other programs' files
    "include/titan/checkpoint/catalogue.h", "include/titan/checkpoint/load.h",
    "include/titan/checkpoint/tensor_source.h", "include/titan/checkpoint/foreign_weights.h",
    "include/titan/checkpoint/hugging_face_export.h"};
/// Types of headers on the way that loads and conversions alone use; the page says so.
const std::set<std::string> kTypesBeside{"StartingPoint", "ConfigChanges", "WeightUse", "TorchtitanRelease"};

bool is_on_the_way(const std::string& header) {
  const bool is_of_checkpoint = header.starts_with("include/titan/checkpoint/") ||
                                (header.starts_with("src/checkpoint/") && header.ends_with(".h"));
  return kHeadersAbove.contains(header) || (is_of_checkpoint && !kHeadersBeside.contains(header));
}

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
  std::set<Place> listed;
  for (std::sregex_iterator at(page.begin(), page.end(), row), end; at != end; ++at) {
    listed.emplace(at->str(1), at->str(2));
  }
  return listed;
}

TEST(SaveTypes, TheTableListsThemAllAndTheyAreFew) {
  const std::string page = read_file(checkout() / "docs/checkpoints.md");
  const std::set<Place> listed = listed_in(page);
  EXPECT_LE(listed.size(), kMostTypes);
  EXPECT_NE(page.find(fmt::format("a save has {} types", listed.size())), std::string::npos) << listed.size();
  std::set<Place> found;
  std::set<std::string> beside;
  for (const SourceFile& file : all_sources()) {
    if (!is_on_the_way(file.shown)) continue;
    for (const Place& type : types_in(file)) {
      if (kTypesBeside.contains(type.first)) {
        beside.insert(type.first);
      } else {
        found.insert(type);
      }
    }
  }
  for (const auto& [type, file] : found) {
    EXPECT_TRUE(listed.contains({type, file})) << "docs/checkpoints.md does not list " << type << " of " << file;
  }
  for (const auto& [type, file] : listed) EXPECT_TRUE(found.contains({type, file})) << file << " has no " << type;
  EXPECT_EQ(beside, kTypesBeside);
  for (const std::string& type : beside) EXPECT_NE(page.find(fmt::format("`{}`", type)), std::string::npos) << type;
}

TEST(SaveTypes, HeadersThatAreNotOnTheWayExist) {
  for (const std::string& header : kHeadersBeside) EXPECT_TRUE(std::filesystem::exists(checkout() / header)) << header;
}

TEST(SaveTypes, AHeaderOfCheckpointIsOnTheWayUnlessItIsNamed) {
  EXPECT_TRUE(is_on_the_way("include/titan/checkpoint/new.h"));
  EXPECT_TRUE(is_on_the_way("src/checkpoint/new.h"));
  EXPECT_TRUE(is_on_the_way("src/train/run_checkpoints.h"));
  EXPECT_FALSE(is_on_the_way("src/train/new.h"));
  EXPECT_FALSE(is_on_the_way("src/checkpoint/new.cpp"));
  EXPECT_FALSE(is_on_the_way("include/titan/checkpoint/pickle.h"));
}

TEST(SaveTypes, DefinitionsAreFoundAndDeclarationsAndInnerTypesAreNot) {
  const SourceFile file{"a", "a.h",
                        "struct A {\n  struct B {};\n};\nclass C;\nenum class D {\n};\nclass E : public A {\n"};
  EXPECT_EQ(types_in(file), (std::set<Place>{{"A", "a.h"}, {"D", "a.h"}, {"E", "a.h"}}));
}

}  // namespace
}  // namespace titan
