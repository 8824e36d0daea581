#include "titan/data/record_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "titan/data/json_escapes.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

/// Keeps the text under one key of the outermost object, and the type of what is there instead.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("boolean"); }
  bool number_integer(number_integer_t) override { return other("number"); }
  bool number_unsigned(number_unsigned_t) override { return other("number"); }
  bool number_float(number_float_t, const string_t&) override { return other("number"); }
  bool string(string_t& value) override {
    if (depth_ == 1 && at_field_) text_ = std::move(value);
    return other("string");
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override {
    other("object");
    ++depth_;
    return true;
  }
  bool start_array(size_t) override {
    other("array");
    ++depth_;
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && outermost_ == "object" && name == field_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  /// After a whole record.
  RecordText result() {
    if (outermost_ != "object") {
      return {{}, fmt::format("this line is a JSON {}, not an object with the field \"{}\"", outermost_, field_), 0};
    }
    if (type_.empty()) return {{}, fmt::format("this record has no field \"{}\"", field_), 0};
    if (type_ != "string") {
      return {{}, fmt::format("the field \"{}\" of this record is no string but of type {}", field_, type_), 0};
    }
    return {std::move(text_), {}, 0};
  }

 private:
  bool other(const char* type) {
    if (depth_ == 0) outermost_ = type;
    if (depth_ == 1 && at_field_) type_ = type;
    at_field_ = at_field_ && depth_ != 1;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  const std::string& field_;
  int64_t depth_ = 0;
  bool at_field_ = false;  // the value of the field comes next
  std::string outermost_, type_, text_;
};

std::optional<RecordText> parse(const std::string& json, const std::string& field) {
  FieldReader reader(field);
  if (!nlohmann::json::sax_parse(json, &reader)) return std::nullopt;
  return reader.result();
}

/// The last line end of a line holds no carriage return of its own.
bool has_lone_carriage_return(std::string_view line) {
  const size_t at = line.find('\r');
  return at != line.npos && at + 1 < line.size() && line[at + 1] != '\n';
}

}  // namespace

std::string describe_no_json(std::string_view line) {
  if (line.find('\0') != line.npos) {
    return "this line is no JSON (it holds NUL bytes, as UTF-16 does: convert the file with iconv -f UTF-16 -t UTF-8)";
  }
  return has_lone_carriage_return(line)
             ? "this line is no JSON (it holds carriage returns without a line feed: records must end in a line feed)"
             : "this line is no JSON";
}

RecordText read_record(std::string_view line, const std::string& field) {
  std::string mended(line);
  int64_t repaired = repair_utf8(mended);
  std::optional<RecordText> read = parse(mended, field);
  if (!read) {
    const int64_t escapes = repair_surrogate_escapes(mended);
    if (escapes > 0) read = parse(mended, field);
    if (read) repaired += escapes;
  }
  if (!read) read = RecordText{{}, describe_no_json(line), 0};
  read->invalid_utf8 = repaired;
  return std::move(*read);
}

}  // namespace titan
