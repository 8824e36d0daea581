// The words of docs/architecture.md: each is used, and what it is never called appears nowhere.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <set>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

struct Word {
  std::string word;
  std::string meaning;
  std::vector<std::string> never;
};

/// The rows of the table under "## Words".
std::vector<Word> words_in(const std::string& page) {
  std::vector<Word> words;
  bool is_inside = false;
  for (const std::string& line : split(page, '\n')) {
    if (line.starts_with("## ")) is_inside = line == "## Words";
    if (!is_inside || !line.starts_with("| ") || line.starts_with("| word |")) continue;
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() != 5) continue;
    Word& word = words.emplace_back(Word{trim(cells[1]), trim(cells[2]), {}});
    for (const std::string& other : split(cells[3], ',')) {
      if (!trim(other).empty()) word.never.push_back(trim(other));
    }
  }
  return words;
}

/// Sources, and pages but the generated one, without the table itself.
std::vector<SourceFile> texts() {
  std::vector<SourceFile> files = all_sources();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkout() / "docs")) {
    const std::string shown = std::filesystem::relative(entry.path(), checkout()).string();
    if (entry.path().extension() != ".md" || shown == "docs/support.md") continue;
    std::string text = read_file(entry.path());
    if (const size_t table = text.find("\n## Words\n"); table != text.npos) {
      text.erase(table, text.find("\n## ", table + 1) - table);
    }
    files.push_back({"docs", shown, std::move(text)});
  }
  return files;
}

/// Whether `text`, in small letters, has the phrase as whole words, singular or plural.
bool has_words(const std::string& text, const std::string& phrase) {
  const auto is_letter = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = text.find(phrase); at != text.npos; at = text.find(phrase, at + 1)) {
    const size_t end = at + phrase.size();
    const bool is_plural = end < text.size() && text[end] == 's' && !is_letter(end + 1);
    if ((at == 0 || !is_letter(at - 1)) && (!is_letter(end) || is_plural)) return true;
  }
  return false;
}

/// The files in which it stands.
std::vector<std::string> places_of(const std::string& phrase, const std::vector<SourceFile>& files) {
  std::vector<std::string> places;
  for (const SourceFile& file : files) {
    if (has_words(file.text, phrase)) places.push_back(file.shown);
  }
  return places;
}

std::vector<SourceFile> in_small_letters(std::vector<SourceFile> files) {
  for (SourceFile& file : files) file.text = to_lower(file.text);
  return files;
}

std::vector<Word> glossary() { return words_in(read_file(checkout() / "docs/architecture.md")); }

TEST(Glossary, HasThirtyWordsAndEachIsUsed) {
  const std::vector<Word> words = glossary();
  EXPECT_GE(words.size(), 30u);
  const std::vector<SourceFile> files = in_small_letters(all_sources());
  std::set<std::string> seen;
  for (const Word& word : words) {
    EXPECT_TRUE(seen.insert(word.word).second) << word.word << " stands there twice";
    EXPECT_FALSE(places_of(word.word, files).empty()) << word.word << " is used nowhere";
  }
}

TEST(Glossary, ItsTypesExist) {
  std::string all;
  for (const SourceFile& file : all_sources()) all += file.text;
  const std::regex name("`([A-Z]\\w+)`");
  for (const Word& word : glossary()) {
    for (std::sregex_iterator at(word.meaning.begin(), word.meaning.end(), name), end; at != end; ++at) {
      const std::string type = (*at)[1].str();
      const auto is_declared = [&](const char* keyword) {
        return all.find(fmt::format("{} {} ", keyword, type)) != all.npos;
      };
      const bool exists = is_declared("struct") || is_declared("class") || is_declared("using");
      EXPECT_TRUE(exists) << type << ", of " << word.word;
    }
  }
}

TEST(Glossary, WhatAWordIsNeverCalledAppearsNowhere) {
  // LibTorch's and the system's own process groups, and a Python baseline's.
  const std::set<std::string> named_by_others{
      "src/cuda/nccl_communicator.cpp", "src/cuda/peer_memory.cpp", "src/tools/rank_process.h",
      "include/titan/distributed/communicator_members.h", "docs/benchmarks/README.md"};
  const std::vector<SourceFile> files = in_small_letters(texts());
  for (const Word& word : glossary()) {
    for (const std::string& other : word.never) {
      std::vector<std::string> places = places_of(other, files);
      if (other == "process group")
        std::erase_if(places, [&](const auto& one) { return named_by_others.contains(one); });
      EXPECT_TRUE(places.empty()) << "\"" << other << "\" for " << word.word << ": " << join(places, ", ");
    }
  }
}

TEST(Glossary, ATableIsReadWithItsWordsAlone) {
  const std::vector<Word> words =
      words_in("| a | b | c |\n## Words\n| word | x | y |\n|---|---|---|\n| p | q `R` | s, t |\n## Z\n");
  ASSERT_EQ(words.size(), 1u);
  EXPECT_EQ(words[0].never, (std::vector<std::string>{"s", "t"}));
  EXPECT_EQ(places_of("t", {{"a", "x", "the ts"}, {"a", "y", "tt"}}), std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace titan
