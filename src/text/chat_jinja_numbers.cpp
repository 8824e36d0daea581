#include "chat_jinja_numbers.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "titan/text/utf8.h"

namespace titan::jinja {

Value rounded(const Value& value, int64_t digits, std::string_view how) {
  if (how != "common") {
    const double power = std::pow(10.0, static_cast<double>(digits)), scaled = as_real(value) * power;
    return real((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power + 0.0);  // Python prints no -0.0 here
  }
  if (digits < 0 || digits > 300) unsupported("rounding to this number of digits");
  if (is_whole(value)) return number(value.number);
  if (!std::isfinite(as_real(value))) return value;
  return real(
      std::stod(fmt::format("{:.{}f}", value.real, digits)));  // rounded as Python does: the exact value, half to even
}

namespace {

bool has_other_digits(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    const char32_t c = first_code_point(text.substr(at));
    if (c >= 0x80 && utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND) return true;
  }
  return false;
}

/// Python's int(text) or float(text), or nothing.
template <typename Number>
std::optional<Number> read_number(std::string_view text) {
  text = strip_characters(text);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_' && (i == 0 || !is_digit(i - 1) || !is_digit(i + 1))) return std::nullopt;
    if (static_cast<unsigned char>(text[i]) >= 0x80) {
      if (has_other_digits(text)) unsupported("reading a number of other digits than ASCII's");
      return std::nullopt;
    }
    if (text[i] != '_') digits.push_back(text[i]);
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  Number number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ptr != digits.data() + digits.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) unsupported("a number of this size");
  if (text.starts_with("+-")) return std::nullopt;
  return number;
}

}  // namespace

Value whole_of(const Value& value, const Value& otherwise) {
  if (is_whole(value)) return number(value.number);
  double whole = 0;
  if (value.kind == Kind::undefined) misfit(value, "number");
  if (value.kind == Kind::real) {
    whole = value.real;
  } else if (is_text(value)) {
    if (const std::optional<int64_t> read = read_number<int64_t>(value.text->bytes)) return number(*read);
    const std::optional<double> read = read_number<double>(value.text->bytes);
    if (!read) return otherwise;
    whole = *read;
  } else {
    return otherwise;
  }
  if (!std::isfinite(whole)) return otherwise;
  if (std::abs(whole) >= 0x1p63) unsupported("a whole number beyond 64 bits");
  return number(static_cast<int64_t>(whole));
}

Value real_of(const Value& value, const Value& otherwise) {
  if (is_number(value)) return real(as_real(value));
  if (value.kind == Kind::undefined) misfit(value, "number");
  if (!is_text(value)) return otherwise;
  const std::optional<double> read = read_number<double>(value.text->bytes);
  return read ? real(*read) : otherwise;
}

}  // namespace titan::jinja
