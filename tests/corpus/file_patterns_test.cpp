// Which files a pattern names, and what is said of folders that it finds.
#include "src/corpus/file_patterns.h"

#include "src/corpus/file_source.h"
#include "support/files.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using Names = std::vector<std::string>;

class FilePatterns : public testing::Test {
 protected:
  void write(const Names& names) {
    for (const std::string& name : names) folder_.write(name, "{\"text\": \"x\"}\n");
  }
  /// The files that are read, relative to the folder.
  Names files(const std::string& pattern) {
    const TextFiles found = find_text_files((folder_ / pattern).string());
    notices_ = found.notices;
    Names names;
    for (const fs::path& file : found.files) names.push_back(file.lexically_relative(folder_.string()).string());
    return names;
  }
  std::string refusal(const std::string& pattern) {
    return message_of(ExitCode::bad_data, [&] { files(pattern); });
  }

  test::TemporaryFolder folder_;
  Names notices_;
};

TEST_F(FilePatterns, TwoStarsStandForAnyNumberOfFolders) {
  write({"a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/z/d.jsonl", "x/y/e.txt", "w/f.jsonl", ".h/g.jsonl", "x/.h.jsonl"});
  const Names all{"a.jsonl", "w/f.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/z/d.jsonl"};
  EXPECT_EQ(files("**/*.jsonl"), all);
  EXPECT_EQ(notices_, Names());
  EXPECT_EQ(files("x/**/*.jsonl"), (Names{"x/b.jsonl", "x/y/c.jsonl", "x/y/z/d.jsonl"}));
  EXPECT_EQ(files("**/y/**/*.jsonl"), (Names{"x/y/c.jsonl", "x/y/z/d.jsonl"}));
  EXPECT_EQ(files("**/**/[cd].jsonl"), (Names{"x/y/c.jsonl", "x/y/z/d.jsonl"}));
  EXPECT_EQ(files("?/**/c.jsonl"), Names{"x/y/c.jsonl"});
  EXPECT_EQ(files("x/**"), (Names{"x/b.jsonl", "x/y/c.jsonl", "x/y/e.txt", "x/y/z/d.jsonl"}));
  EXPECT_EQ(notices_, Names()) << "what is in the folders is read";
  EXPECT_EQ(files("**.jsonl"), Names{"a.jsonl"}) << "two stars in a part mean one";
  EXPECT_PRED_FORMAT2(contains, refusal("**/none*"), "no file matches");
}

TEST_F(FilePatterns, NamesOfFoldersBelowTwoStarsAreNoPatterns) {
  write({"a[1]/*/x.jsonl", "a1/b/x.jsonl"});
  EXPECT_EQ(files("a[[]1]/**/*.jsonl"), Names{"a[1]/*/x.jsonl"});
}

TEST_F(FilePatterns, LinksToFoldersAreFollowedAndOnesThatLeadBackAreNot) {
  write({"x/a.jsonl", "other/b.jsonl"});
  fs::create_directory_symlink("../x", folder_ / "x/back");
  fs::create_directory_symlink("../other", folder_ / "x/link");
  EXPECT_EQ(files("x/**/*.jsonl"), (Names{"x/a.jsonl", "x/link/b.jsonl"}));
}

TEST_F(FilePatterns, AFolderThatMatchesIsNamedSinceItsFilesAreNotRead) {
  write({"a.jsonl", "x/b.jsonl", "x/c.jsonl"});
  EXPECT_EQ(files("*"), Names{"a.jsonl"});
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_PRED_FORMAT2(contains, notices_[0], "/x is a folder and is not read: a pattern matches files only; ");
  EXPECT_PRED_FORMAT2(contains, notices_[0], "/x/* would name those in it");
  EXPECT_PRED_FORMAT2(contains, refusal("[x]"), "only folders match, such as ");
}

TEST_F(FilePatterns, ALinkToNothingIsRefused) {
  write({"a.jsonl"});
  fs::create_symlink("gone.jsonl", folder_ / "b.jsonl");
  EXPECT_PRED_FORMAT2(contains, refusal("*.jsonl"), "b.jsonl is a link to nothing. Mend the link or remove it.");
}

TEST_F(FilePatterns, LinesOfJsonAreKnownByAnyOfTheirNames) {
  write({"a.jsonl", "b.ndjson", "c.json", "d.NDJSON"});
  EXPECT_EQ(files(""), (Names{"a.jsonl", "b.ndjson", "c.json", "d.NDJSON"}));
}

}  // namespace
}  // namespace titan
