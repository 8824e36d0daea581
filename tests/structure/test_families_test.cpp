// The families of models and the optimizer that tests add are written against the interfaces alone: no file of src and
// include knows them, so they can be added and removed without a change there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <regex>
#include <set>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr std::array kFamilies{"tests/support/experts.h", "tests/support/side_channel.h",
                               "tests/support/whole_matrices.h", "tests/train/expert_family.h",
                               "tests/train/side_channel_family.h"};

/// The types, functions and constants that a header defines outside of types.
std::set<std::string> defined_in(const std::string& header) {
  static const std::regex definition(
      R"(\n(?:(?:class|struct|enum class) (\w+)[^;\n]*\{|inline (?:constexpr )?[\w:<>]+ (\w+)[ (]))");
  std::set<std::string> names;
  for (std::sregex_iterator at(header.begin(), header.end(), definition), end; at != end; ++at) {
    names.insert(at->length(1) > 0 ? at->str(1) : at->str(2));
  }
  return names;
}

/// The words of `names` that a file has, and the headers of tests that it includes.
std::vector<std::string> traces_in(const SourceFile& file, const std::set<std::string>& names) {
  static const std::regex word(R"(\w+)"), included("#include \"((?:tests|support)/[^\"]*)\"");
  std::vector<std::string> traces;
  for (std::sregex_iterator at(file.text.begin(), file.text.end(), word), end; at != end; ++at) {
    if (names.contains(at->str())) traces.push_back(fmt::format("{}: {}", file.shown, at->str()));
  }
  for (std::sregex_iterator at(file.text.begin(), file.text.end(), included), end; at != end; ++at) {
    traces.push_back(fmt::format("{}: {}", file.shown, at->str(1)));
  }
  return traces;
}

TEST(TestFamilies, NoSourceNamesAnythingOfThem) {
  std::set<std::string> names;
  for (const char* header : kFamilies) {
    const std::set<std::string> more = defined_in(read_file(checkout() / header));
    EXPECT_FALSE(more.empty()) << header;
    names.insert(more.begin(), more.end());
  }
  std::vector<std::string> traces;
  for (const SourceFile& file : all_sources()) {
    for (std::string& trace : traces_in(file, names)) traces.push_back(std::move(trace));
  }
  EXPECT_TRUE(traces.empty()) << join(traces, "\n");
}

TEST(TestFamilies, WhatAHeaderDefinesIsFoundInASourceAsAWholeWord) {
  const std::set<std::string> names = defined_in(
      "\nclass A : public B {\n  int f() { return 1; }\n};\nenum class E { x };\ninline constexpr int64_t kC = 4;\n"
      "inline std::string g(int x) {\nstruct D;\n");
  EXPECT_EQ(names, (std::set<std::string>{"A", "E", "kC", "g"}));
  const SourceFile file{"a", "src/a/x.cpp", "#include \"support/y.h\"\n#include \"titan/a/z.h\"\nAB b = g2(kC);\n"};
  EXPECT_EQ(traces_in(file, names), (std::vector<std::string>{"src/a/x.cpp: kC", "src/a/x.cpp: support/y.h"}));
}

}  // namespace
}  // namespace titan
