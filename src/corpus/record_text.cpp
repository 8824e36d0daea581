#include "file_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "surrogate_escapes.h"
#include "titan/base/json.h"
#include "titan/text/chat.h"
#include "titan/text/tokenizer.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

/// Reads one line of a .jsonl file for the value under one key of its outermost object.
class RecordReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool binary(binary_t&) override { return false; }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    failed_at_ = position > 0 ? position - 1 : 0;
    return false;
  }
  /// Where the text is no JSON.
  size_t failed_at() const { return failed_at_; }

 protected:
  explicit RecordReader(const std::string& field) : field_(field) {}

  /// Leaves an object or a list.
  virtual bool end() {
    --depth_;
    return true;
  }

  const std::string& field_;
  int64_t depth_ = 0;
  bool at_field_ = false;  // the next value is the field's

 private:
  size_t failed_at_ = 0;
};

/// Stores the text under the key, or the type of a value that is not text.
class FieldReader : public RecordReader {
 public:
  explicit FieldReader(const std::string& field) : RecordReader(field) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("boolean"); }
  bool number_integer(number_integer_t) override { return other("number"); }
  bool number_unsigned(number_unsigned_t) override { return other("number"); }
  bool number_float(number_float_t, const string_t&) override { return other("number"); }
  bool string(string_t& value) override {
    if (depth_ == 1 && at_field_) text_ = std::move(value);
    return other("string");
  }
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
  bool key(string_t& name) override {
    const bool is_ours = depth_ == 1 && outermost_ == "object";
    at_field_ = is_ours && name == field_;
    is_conversation_ = is_conversation_ || (is_ours && is_of_conversation(name));
    return true;
  }

  /// Call after a whole record.
  RecordText result() {
    if (outermost_ != "object") {
      return {{}, fmt::format("this line is a JSON {}, not an object with the field \"{}\"", outermost_, field_), 0};
    }
    if (type_.empty()) {
      const char* hint = is_conversation_ ? " and is a conversation (training.dataset = \"chat\")" : "";
      return {{}, fmt::format("this record has no field \"{}\"{}", field_, hint), 0};
    }
    if (type_ != "string") {
      return {{}, fmt::format("the field \"{}\" of this record is not a string but of type {}", field_, type_), 0};
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
  static bool is_of_conversation(const std::string& name) {
    return name == "messages" || name == "conversations" || name == "completion" || name == "instruction";
  }

  bool is_conversation_ = false;
  std::string outermost_, type_, text_;
};

std::optional<RecordText> parse(const std::string& json, const std::string& field, size_t& failed_at) {
  FieldReader reader(field);
  if (parse_json_events(json, &reader)) return reader.result();
  failed_at = reader.failed_at();
  return std::nullopt;
}

/// Whether a carriage return is at a place other than the end of the line.
bool has_lone_carriage_return(std::string_view line) {
  const size_t at = line.find('\r');
  return at != line.npos && at + 1 < line.size() && line[at + 1] != '\n';
}

}  // namespace

std::string describe_no_json(std::string_view line, size_t offset) {
  const auto nuls = static_cast<size_t>(std::count(line.begin(), line.end(), '\0'));
  if (4 * nuls > line.size()) {
    return "this line is not JSON (it holds NUL bytes, as UTF-16 does: convert the file with iconv -f UTF-16 -t UTF-8)";
  }
  if (has_lone_carriage_return(line)) {
    return "this line is not JSON (it holds carriage returns without a line feed: records must end in a line feed)";
  }
  const std::string_view record = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
  const std::string place = json_place(record, offset);
  const char* why = offset < line.size() && line[offset] == '\0' ? ", where a NUL byte is" : "";
  return place.starts_with("1:") ? fmt::format("this line is not JSON from column {} on{}", place.substr(2), why)
                                 : fmt::format("this record is not JSON from its line {} on{}", place, why);
}

RecordText read_record(std::string_view line, const std::string& field) {
  std::string mended(line);
  int64_t repaired = repair_utf8(mended);
  size_t failed_at = 0;
  std::optional<RecordText> read = parse(mended, field, failed_at);
  if (!read) {
    const int64_t escapes = repair_surrogate_escapes(mended);
    if (replace_odd_numbers(mended) || escapes > 0) read = parse(mended, field, failed_at);
    if (read) repaired += escapes;
  }
  if (!read) read = RecordText{{}, describe_no_json(mended, failed_at), 0};
  read->invalid_utf8 = repaired;
  return std::move(*read);
}

// Parses the list of ids in one line of a .jsonl file.

namespace {

/// Appends the list under the key, and records its first problem.
class IdsReader : public RecordReader {
 public:
  IdsReader(const std::string& field, int64_t vocabulary, std::vector<int32_t>& ids)
      : RecordReader(field), vocabulary_(vocabulary), ids_(ids), before_(ids.size()) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t number) override { return in_list_ ? item(number) : value(); }
  bool number_unsigned(number_unsigned_t number) override {
    return in_list_ ? item(number > uint64_t{INT32_MAX} ? INT64_MAX : static_cast<int64_t>(number)) : value();
  }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool start_object(size_t) override {
    if (depth_ > 0) value();
    ++depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 1 && at_field_) {  // of duplicate keys the last one counts, as in Python's json
      ids_.resize(before_);
      at_field_ = false;
      found_ = in_list_ = true;
    } else {
      value();
    }
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && name == field_;
    if (at_field_) problem_.clear();  // an earlier list with the same key does not count
    return true;
  }

  /// Call after a whole record. Returns its problem, or empty.
  std::string problem() const {
    if (!problem_.empty()) return problem_;
    return found_ ? "" : fmt::format("this record has no field \"{}\"", field_);
  }

 private:
  /// Handles a value that is not an id: an error if it is the field itself or an item of its list.
  bool value() {
    if (depth_ == 0) set_problem(fmt::format("this line is not a JSON object with the field \"{}\"", field_));
    if (in_list_) set_problem(fmt::format("item {} of \"{}\" is not a whole number", next_item(), field_));
    if (depth_ == 1 && at_field_)
      set_problem(fmt::format("the field \"{}\" of this record is not a list of ids", field_));
    at_field_ = at_field_ && depth_ != 1;
    return true;
  }

  bool item(int64_t id) {
    if (id < 0 || id >= vocabulary_) {
      set_problem(fmt::format("item {} of \"{}\" is not an id of the vocabulary: its ids are 0 to {}", next_item(),
                              field_, vocabulary_ - 1));
    }
    ids_.push_back(static_cast<int32_t>(id));
    return true;
  }

  bool end() override {
    RecordReader::end();
    if (depth_ == 1) in_list_ = false;
    return true;
  }

  size_t next_item() const { return ids_.size() - before_; }
  void set_problem(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  int64_t vocabulary_;
  std::vector<int32_t>& ids_;
  size_t before_;
  bool in_list_ = false, found_ = false;
  std::string problem_;
};

/// Appends the record's ids and returns its problem; for invalid JSON returns nothing and may have appended some ids.
std::optional<std::string> parse(std::string_view json, const std::string& field, const Tokenizer& vocabulary,
                                 std::vector<int32_t>& ids, size_t& failed_at) {
  IdsReader reader(field, vocabulary.vocabulary_size(), ids);
  if (parse_json_events(json, &reader)) return reader.problem();
  failed_at = reader.failed_at();
  return std::nullopt;
}

}  // namespace

std::string read_ids(std::string_view line, const std::string& field, const Tokenizer& vocabulary,
                     std::vector<int32_t>& ids) {
  const size_t before = ids.size();
  size_t failed_at = 0;
  std::string mended(line);
  std::optional<std::string> read = parse(line, field, vocabulary, ids, failed_at);
  if (!read) {  // repair invalid text and numbers in other fields, as for records of text
    ids.resize(before);
    const int64_t repaired = repair_utf8(mended) + repair_surrogate_escapes(mended);
    if (replace_odd_numbers(mended) || repaired > 0) read = parse(mended, field, vocabulary, ids, failed_at);
  }
  const std::string problem = read ? *read : describe_no_json(mended, failed_at);
  if (!problem.empty()) {
    ids.resize(before);
    return problem;
  }
  const int32_t bos = vocabulary.bos_id(), eos = vocabulary.eos_id();
  const bool empty = ids.size() == before;
  if (bos != Tokenizer::kNoId && (empty || ids[before] != bos)) {
    ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(before), bos);
  }
  if (eos != Tokenizer::kNoId && (empty || ids.back() != eos)) ids.push_back(eos);
  return {};
}

}  // namespace titan
