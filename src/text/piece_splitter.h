// The regular expressions of tokenizers, run by PCRE2. They are written for another engine (Oniguruma): syntax
// with another meaning in PCRE2 is translated, and unsupported syntax is an error. Immutable; shared by threads, each
// with its own Scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

class Pattern {
 public:
  enum class Anchor { here, anywhere };

  /// Throws Error(bad_data) with the part of the expression that is not understood. `here`: a match must begin where
  /// `find` starts.
  Pattern(std::string_view expression, Anchor anchor);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  /// Reusable match buffers.
  class Scratch {
   public:
    explicit Scratch(const Pattern& pattern);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    /// A new text: its searches have their own limit of time.
    void start_text();

   private:
    friend class Pattern;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// The first non-empty match at or after `from` in valid UTF-8. False if there is none. Throws Error(bad_data) if the
  /// match needs more steps or memory than PCRE2's limits, or if searches in one text take too long.
  bool find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;

  /// Place of a walk through the matches of one text.
  struct Walk {
    size_t from = 0;
    std::optional<size_t> last_end;
  };
  /// The next match, also an empty one unless it follows the last match directly, as Oniguruma's iterator gives them.
  bool next(std::string_view text, Walk& walk, Scratch& scratch, Match& match) const;

  /// `expression` translated to PCRE2 syntax with the meaning of Oniguruma: \s is Unicode's White_Space, $ the end of a
  /// line. Throws as the constructor does.
  static std::string translated(std::string_view expression);

 private:
  struct Program;
  bool search(std::string_view text, size_t from, uint32_t options, Scratch& scratch, Match& match) const;

  std::unique_ptr<Program> program_;
};

// Pre-tokenization of byte-level tokenizers: splits text into pieces by the expressions of Llama 3, Qwen 2 and GPT-2.
// The expression, run by PCRE2, defines the pieces; plain ASCII uses a hand-written fast path.

/// One of the known expressions, compiled once. Pieces cover the text without gaps. `piece_end` is thread-safe if each
/// thread has its own Scratch.
class PieceSplitter {
 public:
  enum class Rule { llama3, qwen2, gpt2 };

  explicit PieceSplitter(Rule rule = Rule::llama3);

  /// The rule of a tokenizer file's expression, or nothing if the expression is unknown.
  static std::optional<Rule> rule_of(std::string_view expression);
  static std::string_view expression_of(Rule rule);

  class Scratch : public Pattern::Scratch {
   public:
    explicit Scratch(const PieceSplitter& splitter) : Pattern::Scratch(splitter.pattern_) {}
  };

  /// The end (> begin) of the piece that starts at `begin` < text.size(). `text` is valid UTF-8.
  size_t piece_end(std::string_view text, size_t begin, Scratch& scratch) const {
    const size_t end = ascii_piece_end(text, begin);
    return end != 0 ? end : expression_piece_end(text, begin, scratch);
  }

  /// The same, by PCRE2 only: the definition, used wherever a piece touches a non-ASCII character.
  size_t expression_piece_end(std::string_view text, size_t begin, Scratch& scratch) const;

  /// The same, without PCRE2; 0 if a non-ASCII character could affect the result.
  size_t ascii_piece_end(std::string_view text, size_t begin) const {
    return rule_ == Rule::gpt2 ? gpt2_ascii_end(text, begin) : llama_ascii_end(text, begin, most_digits_);
  }

 private:
  static size_t llama_ascii_end(std::string_view text, size_t begin, size_t most_digits);
  static size_t gpt2_ascii_end(std::string_view text, size_t begin);

  Rule rule_;
  size_t most_digits_;
  Pattern pattern_;
};

}  // namespace titan
