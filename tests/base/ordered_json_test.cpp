#include "titan/base/ordered_json.h"

#include <gtest/gtest.h>

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
