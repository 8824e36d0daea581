// JSON is parsed through titan/base/json.h alone, which bounds its depth and refuses NUL bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

#include "sources.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr const char* kParser = "include/titan/base/json.h";

/// The lines of a file that call nlohmann's parser themselves: "src/text/x.cpp:3".
std::vector<std::string> unbounded_parses(const SourceFile& file) {
  static const std::regex call(R"(\w*[Jj]son::(sax_)?parse\s*\()");
  std::vector<std::string> places;
  int number = 0;
  for (const std::string& line : split(file.text, '\n')) {
    ++number;
    if (std::regex_search(line, call)) places.push_back(fmt::format("{}:{}", file.shown, number));
  }
  return places;
}

TEST(JsonRule, JsonIsParsedByTheFunctionsThatBoundItsDepthAndRefuseNulBytes) {
  std::vector<std::string> places;
  int parsers = 0;
  for (const SourceFile& file : all_sources()) {
    const std::vector<std::string> found = unbounded_parses(file);
    if (file.shown == kParser) {
      parsers += static_cast<int>(found.size());
    } else {
      places.insert(places.end(), found.begin(), found.end());
    }
  }
  EXPECT_GT(parsers, 0) << kParser << " was not found";
  EXPECT_TRUE(places.empty()) << "use parse_json or parse_json_with of " << kParser << ":\n" << join(places, "\n");
}

TEST(JsonRule, ACallOfThePlainParserIsFoundWithFileAndLine) {
  for (const char* call : {"nlohmann::json::parse(text)", "nlohmann::ordered_json::parse (text)", "Json::parse(x, y)",
                           "json::sax_parse(x, &y)"}) {
    EXPECT_EQ(unbounded_parses({"a", "src/a/x.cpp", fmt::format("int x;\nauto y = {};\n", call)}),
              std::vector<std::string>{"src/a/x.cpp:2"})
        << call;
  }
  for (const char* other :
       {"parse_json(text)", "catch (const nlohmann::json::parse_error& e)", "parse_json_events(x, &y)"}) {
    EXPECT_EQ(unbounded_parses({"a", "src/a/x.cpp", other}), std::vector<std::string>()) << other;
  }
}

}  // namespace
}  // namespace titan
