// Which class of transformers reads a tokenizer: what the model's config.json and tokenizer_config.json say, in the
// order of its AutoTokenizer. Knows no tokens.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace titan {

/// What the config.json beside a tokenizer says about it.
struct ModelConfig {
  bool is_there = false;
  std::string type;                  ///< model_type
  std::string name;                  ///< model_name
  std::string tokenizer_class;       ///< counts where tokenizer_config.json names none
  std::string transformers_version;  ///< that wrote the file

  /// Whether transformers 5.0.0 or a later one wrote the file.
  bool is_of_version_5() const;
};

/// Reads `file`, if it is there. Another part reads the model's config.json and says what is wrong with it.
ModelConfig read_model_config(const std::filesystem::path& file);

struct ChosenClass {
  std::string name;         ///< without "Fast"; empty: no file says
  bool needs_code = false;  ///< none of transformers reads it, only the Python code beside the files
};

/// `named`: the class of tokenizer_config.json. `has_code`: the file has auto_map.AutoTokenizer; like AutoTokenizer
/// without trust_remote_code, this does without the code if transformers has a class. `is_byte_level` says whether the
/// tokenizer.json is.
ChosenClass choose_tokenizer_class(const ModelConfig& model, std::string named, bool has_code,
                                   const std::function<bool()>& is_byte_level);

}  // namespace titan
