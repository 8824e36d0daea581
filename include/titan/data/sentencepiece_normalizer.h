// How a SentencePiece model rewrites text before it is cut: its precompiled character rules, and what it does with
// spaces. Immutable; a Pass walks through one text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/added_tokens.h"
#include "titan/data/sentencepiece_model.h"

namespace titan {

class SentencePieceNormalizer {
 public:
  /// Throws Error(bad_data) without the file's name when the rules are damaged.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  /// One text on its way, so that a long one need not be held in normalised form as a whole.
  class Pass {
   public:
    /// `text` is valid UTF-8 and outlives the pass.
    Pass(const SentencePieceNormalizer& owner, std::string_view text);

    /// Appends normalised text until `out` holds at least `bytes` or the text is at its end; false when it is. Spaces
    /// at the end of the text are then taken off `out` where the model asks for it, so whoever consumes `out` before
    /// must leave its trailing spaces there.
    bool run(size_t bytes, std::string& out);

   private:
    void append(std::string_view piece, std::string& out);

    const SentencePieceNormalizer& owner_;
    std::string_view rest_;
    bool after_space_;
    bool started_ = false;
    bool wrote_nothing_ = false;
  };

 private:
  struct Rewritten {
    std::string_view text;
    size_t taken;  // bytes of the input that it stands for
  };
  Rewritten rewrite_front(std::string_view text) const;
  Rewritten rewrite_by_rule(std::string_view text) const;
  void read_charsmap(std::string_view charsmap);
  void find_simple_bytes();

  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  AddedTokenFinder user_defined_;
  std::vector<uint32_t> trie_;      // a double array: see rewrite_by_rule
  std::string replacements_;        // strings that end in NUL, named by their offset
  std::array<bool, 128> simple_{};  // ASCII that stands for itself whenever ASCII or nothing follows
};

}  // namespace titan
