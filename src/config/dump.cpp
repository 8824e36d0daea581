#include "titan/config/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "titan/base/json.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

struct JsonWriter {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(const std::vector<Record>& records) const {
    Json array = Json::array();
    for (const Record& record : records) {
      Json object = Json::object();
      for (const auto& [name, value] : record.fields) object[name] = std::visit(*this, value);
      array.push_back(std::move(object));
    }
    return array;
  }
  template <class T>
  Json operator()(const T& value) const {
    return value;
  }
};

Json::json_pointer pointer_to(const Option& option) {
  std::string path = "/" + option.key;
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer(path);
}

std::string toml_line(const Option& option, const Value& value, const Origins* origins) {
  bool none = std::holds_alternative<std::monostate>(value);
  bool comment = none || option.key == "job.config_file";
  std::string line = fmt::format("{}{} = {}", comment ? "# " : "", option.name(), to_toml(value));
  if (origins == nullptr || !origins->is_set(option.key)) return line;
  std::string spelling = origins->spelling(option.key);
  std::string former = spelling == option.key ? "" : ", as " + spelling;
  return fmt::format("{:<55}  # {}{}", line, printable(origins->place(option.key).to_string()), former);
}

/// "3", or "3 (as training.batch_size)" for a value given under a former spelling.
std::string diff_cell(const Option& option, const DiffSide& side) {
  std::string text = to_toml(option.read(side.config));
  if (side.origins == nullptr || side.origins->spelling(option.key) == option.key) return text;
  return text + " (as " + side.origins->spelling(option.key) + ")";
}

}  // namespace

Json to_json(const Value& value) { return std::visit(JsonWriter{}, value); }

std::optional<Value> value_from_json(ValueType type, const Json& json) {
  if (json.is_boolean()) return convert(type, Value(json.get<bool>()));
  if (json.is_number_integer()) return convert(type, Value(json.get<int64_t>()));
  if (json.is_number()) return convert(type, Value(json.get<double>()));
  if (json.is_string()) return convert(type, Value(json.get<std::string>()));
  return std::nullopt;
}

std::string dump_toml(const Schema& schema, const JobConfig& config, const Origins* origins) {
  std::string text;
  for (const SectionInfo& section : schema.sections()) {
    std::string lines;
    for (const Option& option : schema.options()) {
      if (option.section == section.name && option.read) {
        lines += toml_line(option, option.read(config), origins) + "\n";
      }
    }
    if (!lines.empty()) text += fmt::format("{}[{}]\n{}", text.empty() ? "" : "\n", section.name, lines);
  }
  return text;
}

std::string dump_json(const Schema& schema, const JobConfig& config) {
  Json root = Json::object();
  for (const Option& option : schema.options()) {
    if (option.read) root[pointer_to(option)] = std::visit(JsonWriter{}, option.read(config));
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<ChangedOption> changes_since(const Schema& schema, const Json& before, const JobConfig& config) {
  std::vector<ChangedOption> changes;
  const Json now =
      parse_json<Json>(dump_json(schema, config));  // a round trip, so that text that is not UTF-8 is replaced in both
  for (const Option& option : schema.options()) {
    const Json::json_pointer at = pointer_to(option);
    if (!option.read || option.key == "job.config_file" || !before.contains(at) || before[at] == now[at]) continue;
    const std::string was = before[at].is_null() ? "none" : before[at].dump();
    changes.push_back({option.key, fmt::format("{} = {} (was {})", option.key, to_toml(option.read(config)), was)});
  }
  return changes;
}

std::string diff_configs(const Schema& schema, const DiffSide& a, const DiffSide& b) {
  std::vector<std::array<std::string, 3>> rows{{"", a.title, b.title}};
  for (const Option& option : schema.options()) {
    if (!option.read || option.key == "job.config_file") continue;
    if (option.read(a.config) == option.read(b.config)) continue;
    rows.push_back({option.key, diff_cell(option, a), diff_cell(option, b)});
  }
  if (rows.size() == 1) return {};
  std::array<size_t, 2> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& [key, in_a, in_b] : rows) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", key, widths[0], in_a, widths[1], in_b);
  }
  return text;
}

}  // namespace titan
