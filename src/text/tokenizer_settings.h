// What the JSON files beside a tokenizer say about it: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json and the model's config.json, in transformers' order of precedence (version 5). Knows no vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "json_node.h"
#include "model_classes.h"

namespace titan {

struct TokenizerSettings {
  /// Which class of transformers reads the tokenizer. `backend` follows the tokenizer's own file; the others replace
  /// what surrounds its vocabulary by rules of their own.
  enum class Class { backend, llama, qwen2, gpt2, gpt_neox, other };

  /// What holds for the expression that splits a large vocabulary's text: early tokenizer.json files of Mistral's
  /// models have another one than the models were trained with.
  enum class MistralRegex { as_in_file, reported, replaced };

  /// A special token with a name: "bos_token".
  struct Named {
    std::string key;
    AddedToken token;
    bool by_default = false;  ///< the class's, not a file's
    bool is_object = false;   ///< tokenizer_config.json has it with flags
    bool is_own = false;      ///< the model's own, of a list of such tokens
  };

  Class reader = Class::backend;
  std::string class_name;                      ///< for messages; empty: no file names one
  bool any = false;                            ///< whether there is such a file
  bool needs_code = false;                     ///< the tokenizer is Python code beside the files
  std::string newest_file = "tokenizer.json";  ///< by fast_tokenizer_files: the one that is read as tokenizer.json
  MistralRegex mistral_regex = MistralRegex::as_in_file;

  std::vector<std::pair<int32_t, AddedToken>> added;  ///< by the id that the files give
  bool lists_added = false;                           ///< `added` is added_tokens_decoder's
  std::vector<Named> named;
  std::vector<std::string> none;  ///< keys of special tokens that a file sets to null
  std::vector<AddedToken> extra;
  bool names_extra = false;     ///< whether a file says `extra`, however empty
  bool extra_of_model = false;  ///< `extra` is the vocabulary's own file's
  bool former_extra = false;    ///< `extra` is from special_tokens_map.json
  bool add_bos = false;
  bool add_eos = false;
  bool add_prefix_space = false;
  std::optional<bool> legacy;
  bool split_special_tokens = false;

  std::vector<std::string> notices;  ///< one line for each disagreement of two files

  /// The special token named `key`; null if there is none.
  const Named* find(const std::string& key) const;
  /// Names a special token unless a file does, or says that there is none.
  void add_default(const std::string& key, const std::string& content);
};

/// Reads the files in `folder`. `file`: the tokenizer.json, if that is the tokenizer. Throws Error(bad_data).
TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder, const std::optional<JsonNode>& file);

/// An id of a Hugging Face file. Throws Error(bad_data).
int32_t token_id_in(const JsonNode& node);

/// The flags and the content of an added token, without its id.
AddedToken read_added_token(const JsonNode& node);

}  // namespace titan
