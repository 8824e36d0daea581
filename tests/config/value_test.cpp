#include "titan/config/value.h"

#include <gtest/gtest.h>

#include <cmath>

namespace titan {
namespace {

TEST(Value, is_written_as_toml) {
  EXPECT_EQ(to_toml(Value(true)), "true");
  EXPECT_EQ(to_toml(Value(int64_t{-3})), "-3");
  EXPECT_EQ(to_toml(Value(1.0)), "1.0");
  EXPECT_EQ(to_toml(Value(8e-4)), "0.0008");
  EXPECT_EQ(to_toml(Value(1e-8)), "1e-08");
  EXPECT_EQ(to_toml(Value("a\"b\\c\n\x01")), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(to_toml(Value(std::vector<std::string>{"a", "b"})), "[\"a\", \"b\"]");
  EXPECT_EQ(to_toml(Value(std::vector<int64_t>{1, 2})), "[1, 2]");
  EXPECT_EQ(to_toml(Value(std::vector<std::vector<std::string>>{{"a"}, {}})), "[[\"a\"], []]");
  EXPECT_EQ(to_toml(Value(std::vector<Record>{{{{"match", Value("x")}}}})), "[{ match = \"x\" }]");
}

TEST(Value, a_command_line_word_becomes_a_value_or_nothing) {
  EXPECT_EQ(parse_word(ValueType::integer, "1_000"), Value(int64_t{1000}));
  EXPECT_EQ(parse_word(ValueType::integer, "+5"), Value(int64_t{5}));
  EXPECT_EQ(parse_word(ValueType::integer, "5.0"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::integer, "99999999999999999999"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::integer, ""), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::number, "3e-4"), Value(3e-4));
  EXPECT_EQ(parse_word(ValueType::number, "2"), Value(2.0));
  EXPECT_EQ(parse_word(ValueType::number, "nan"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::number, "inf"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::boolean, "TRUE"), Value(true));
  EXPECT_EQ(parse_word(ValueType::boolean, "1"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::text_list, ""), Value(std::vector<std::string>{}));
  EXPECT_EQ(parse_word(ValueType::text_list, "a, b"), Value(std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse_word(ValueType::integer_list, "1,x"), std::nullopt);
  EXPECT_EQ(parse_word(ValueType::number_list, "3.4445, -4.775, 2"), Value(std::vector<double>{3.4445, -4.775, 2}));
  EXPECT_EQ(parse_word(ValueType::number_list, "1,inf"), std::nullopt);
}

TEST(Value, a_list_of_numbers_takes_integers_and_no_infinities) {
  EXPECT_EQ(convert(ValueType::number_list, Value(std::vector<int64_t>{1, 2})), Value(std::vector<double>{1, 2}));
  EXPECT_EQ(convert(ValueType::number_list, Value(std::vector<double>{1, HUGE_VAL})), std::nullopt);
  EXPECT_EQ(convert(ValueType::integer_list, Value(std::vector<double>{1, 2})), std::nullopt);
  EXPECT_EQ(to_toml(Value(std::vector<double>{1, -0.5})), "[1.0, -0.5]");
}

TEST(Value, an_empty_array_is_a_list_of_anything) {
  Value empty(std::vector<std::string>{});
  EXPECT_EQ(convert(ValueType::integer_list, empty), Value(std::vector<int64_t>{}));
  EXPECT_EQ(convert(ValueType::records, empty), Value(std::vector<Record>{}));
  EXPECT_EQ(convert(ValueType::text_table, empty), Value(std::vector<std::vector<std::string>>{}));
  EXPECT_EQ(convert(ValueType::integer, empty), std::nullopt);
}

}  // namespace
}  // namespace titan
