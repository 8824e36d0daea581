// Puts the tokens of the configs beside a Hugging Face tokenizer into its vocabulary, as transformers does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>

#include "added_tokens.h"
#include "hugging_face_tokenizer.h"
#include "tokenizer_settings.h"

namespace titan {

/// Combines what the tokenizer's own file and the files beside it say, in transformers' order.
class TokenizerAssembly {
 public:
  /// `path`: of the tokenizer's own file. `parts`: made of it.
  TokenizerAssembly(const std::filesystem::path& path, TokenizerSettings settings, HuggingFaceParts parts);
  TokenizerAssembly(const TokenizerAssembly&) = delete;  // added_ looks into parts_
  TokenizerAssembly& operator=(const TokenizerAssembly&) = delete;

  /// A token that the tokenizer's own file adds. The package gives it the next free id, whatever the file says.
  void put(const AddedToken& token);
  /// The same, without an id in the file.
  void add(AddedToken token) { added_.add(std::move(token)); }

  /// `framed`: the tokenizer has a post-processor of its own. `own`: a hash of the tokenizer's own file. Call once.
  HuggingFaceParts finish(bool framed, uint64_t own);

 private:
  /// One line for all tokens of a kind: the first one's, and how many there are.
  struct Noticed {
    int64_t tokens = 0;
    size_t line = 0;
  };

  void add_listed();
  void add_named();
  /// transformers' Qwen2Tokenizer adds its special tokens once more, without flags.
  void add_again();
  bool is_named(const AddedToken& token) const { return names_.contains(token.content); }
  /// A tokenizer.json is complete: a name that it lacks is a mistake.
  void check_known(const TokenizerSettings::Named& named) const;
  int32_t id_of(const std::string& key) const;
  void notice_first(Noticed& noticed, const std::string& what);
  void count_noticed();
  void notice(const std::string& what);
  std::string described() const;

  std::filesystem::path path_;
  TokenizerSettings settings_;
  HuggingFaceParts parts_;
  std::unordered_set<std::string> names_;  // contents of the named tokens
  AddedVocabulary added_;
  bool said_flags_ = false;
  Noticed renumbered_, other_ids_, new_ids_;
};

}  // namespace titan
