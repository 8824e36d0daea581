#include "tokenizer_class.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "json_node.h"
#include "model_classes.h"
#include "titan/base/error.h"

namespace titan {
namespace {

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

}  // namespace

bool ModelConfig::is_of_version_5() const {
  std::string_view rest = transformers_version;
  if (rest.starts_with('v')) rest.remove_prefix(1);
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view major = rest.substr(0, digits);
  if (major.empty() || major == "0") return false;
  if (major != "5") return major.size() > 1 || major > "5";
  rest.remove_prefix(digits);
  while (rest.starts_with(".0")) rest.remove_prefix(2);
  rest.remove_prefix(std::min(rest.find_first_not_of("._-"), rest.size()));
  for (const char* before : {"dev", "a", "b", "c", "rc", "pre"}) {  // 5.0.0.dev0 and 5.0.0rc1 are versions before 5.0.0
    if (rest.starts_with(before)) return false;
  }
  return true;
}

ModelConfig read_model_config(const std::filesystem::path& file) {
  ModelConfig config;
  if (!std::filesystem::is_regular_file(file)) return config;
  try {
    const nlohmann::json json = read_json_file(file);
    if (!json.is_object()) return config;
    config.is_there = true;
    const auto read = [&](const char* key, std::string& value) {
      if (auto field = json.find(key); field != json.end() && field->is_string()) value = *field;
    };
    read("model_type", config.type);
    read("model_name", config.name);
    read("tokenizer_class", config.tokenizer_class);
    read("transformers_version", config.transformers_version);
  } catch (const Error&) {
  }
  return config;
}

ChosenClass choose_tokenizer_class(const ModelConfig& model, std::string named, bool has_code,
                                   const std::function<bool()>& is_byte_level) {
  named = without_fast(std::move(named));
  const std::string_view of_model = class_of_model(model.type);
  const std::string declared = named.empty() ? without_fast(model.tokenizer_class) : named;
  if (has_code) {
    const bool has_class = !of_model.empty() || is_known_class(named) || is_misnamed_model(model.type);
    return {declared.empty() ? std::string(of_model) : declared, !has_class};
  }
  const bool is_misnamed = is_misnamed_model(model.type) || is_misnamed_model(model.name);
  // Many byte-level tokenizers name the class of the first Llama's by mistake.
  if (declared == "LlamaTokenizer" && !is_misnamed && is_byte_level()) return {std::string(kGenericClass)};
  const bool model_decides = of_model == kGenericClass || declared.empty() || is_misnamed;
  return {!of_model.empty() && model_decides ? std::string(of_model) : declared};
}

}  // namespace titan
