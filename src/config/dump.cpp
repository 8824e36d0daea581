#include "titan/config/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

std::string toml_line(const Option& option, const Value& value, const Origins* origins) {
  bool none = std::holds_alternative<std::monostate>(value);
  bool comment = none || option.key == "job.config_file";
  std::string line = fmt::format("{}{} = {}", comment ? "# " : "", option.name(), to_toml(value));
  if (origins == nullptr || !origins->is_set(option.key)) return line;
  std::string spelling = origins->spelling(option.key);
  std::string former = spelling == option.key ? "" : ", as " + spelling;
  return fmt::format("{:<55}  # {}{}", line, origins->place(option.key).to_string(), former);
}

}  // namespace

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
    if (!option.read) continue;
    std::string path = "/" + option.key;
    std::replace(path.begin(), path.end(), '.', '/');
    root[Json::json_pointer(path)] = std::visit(JsonWriter{}, option.read(config));
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string diff_configs(const Schema& schema, const JobConfig& a, const JobConfig& b) {
  std::string text;
  for (const Option& option : schema.options()) {
    if (!option.read || option.key == "job.config_file") continue;
    Value in_a = option.read(a);
    Value in_b = option.read(b);
    if (in_a != in_b) text += fmt::format("{:<48}  {:<28}  {}\n", option.key, to_toml(in_a), to_toml(in_b));
  }
  return text;
}

}  // namespace titan
