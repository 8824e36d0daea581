#include "titan/base/ordered_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "titan/base/json.h"

namespace titan {
namespace {

TEST(OrderedJson, IsWhatTheLibrarysParserMakes) {
  for (const char* text : {"null", "1", "-2.5", "\"a\"", "[]", "{}", "[1, [2, {\"b\": [3]}], \"c\"]",
                           R"({"z": 1, "a": {"y": [true, null], "x": "é"}, "m": []})", R"({"a": 1, "b": 2, "a": 3})",
                           R"([{"b": 1, "a": {"d": 1, "c": {}}}, {"b": 2}])"}) {
    const auto expected = nlohmann::ordered_json::parse(text);
    EXPECT_EQ(parse_ordered_json(text).dump(), expected.dump()) << text;
  }
}

TEST(OrderedJson, WhatIsNoJsonIsRefusedAsByTheLibrary) {
  for (const char* text : {"", "{", "[1,", "{\"a\" 1}", "1 2", "{\"a\": }"}) {
    EXPECT_THROW(parse_ordered_json(text), nlohmann::json::exception) << text;
  }
  EXPECT_THROW(parse_ordered_json("1e999"), nlohmann::json::exception);
  const std::string deep = std::string(kDeepestJson + 1, '[') + std::string(kDeepestJson + 1, ']');
  EXPECT_THROW(parse_ordered_json(deep), nlohmann::json::exception);
}

/// Where the parse of `text` fails; 0 if it does not.
template <typename Parse>
size_t failure_of(const Parse& parse, const std::string& text) {
  try {
    parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return error.byte;
  }
  return 0;
}

TEST(Json, ANulByteIsNoEndOfTheText) {
  struct Events : nlohmann::detail::json_sax_acceptor<nlohmann::json> {
    bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) {
      failed_at = byte;
      return false;
    }
    size_t failed_at = 0;
  };
  for (const std::string text : {"{\"a\": 1}?", "{\"a\": 1} ?\n{\"a\": 2}", "[1]??", "{\"a\": NaN}?x", "{\"a\"?: 1}"}) {
    std::string json = text;
    std::replace(json.begin(), json.end(), '?', '\0');
    const size_t place = json.find('\0') + 1;
    EXPECT_EQ(failure_of([](const std::string& t) { return parse_json(t); }, json), place) << text;
    EXPECT_TRUE(parse_json(json, /*allow_exceptions=*/false).is_discarded()) << text;
    const auto stream_value = [](const std::string& t) {
      std::istringstream stream(t);
      return parse_json_with(stream, [](auto&&...) { return true; });
    };
    if (text.find("NaN") != text.npos) continue;  // parse_json alone accepts it
    EXPECT_EQ(failure_of([](const std::string& t) { return parse_ordered_json(t); }, json), place) << text;
    EXPECT_EQ(failure_of(stream_value, json), place) << text;
    Events events;
    EXPECT_FALSE(parse_json_events(json, &events)) << text;
    EXPECT_EQ(events.failed_at, place) << text;
  }
  std::istringstream whole("{\"a\": 1}\n");
  EXPECT_EQ(parse_json_with(whole, [](auto&&...) { return true; })["a"], 1);
}

TEST(OrderedJson, ManyKeysKeepTheirOrder) {
  std::string text = "{";
  for (int64_t i = 0; i < 300'000; ++i)
    text += (i > 0 ? ",\"" : "\"") + std::to_string(i * 7919 % 300'007) + "\":" + std::to_string(i);
  const nlohmann::ordered_json parsed = parse_ordered_json(text + "}");
  ASSERT_EQ(parsed.size(), 300'000u);
  int expected = 0;
  for (const auto& value : parsed) ASSERT_EQ(value.get<int>(), expected++);
}

}  // namespace
}  // namespace titan
