// The regular expressions of tokenizers, run by PCRE2: they are written for other engines (Rust's, Oniguruma), so what
// means something else in PCRE2 is rewritten, and what cannot be is refused. Immutable; shared by threads, each with
// its own Scratch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace titan {

class Pattern {
 public:
  enum class Anchor { here, anywhere };

  /// Throws Error(bad_data), which says what of the expression is not understood. `here`: a match must begin where
  /// `find` begins.
  Pattern(std::string_view expression, Anchor anchor);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  /// Working memory of a match.
  class Scratch {
   public:
    explicit Scratch(const Pattern& pattern);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Pattern;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// The first non-empty match at or after `from` in valid UTF-8. False when there is none. Throws Error(bad_data) when
  /// the expression needs more steps or memory than PCRE2 allows.
  bool find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;

  /// `expression` as PCRE2 must read it for it to mean what Oniguruma and Rust's regex make of it: \s is Unicode's
  /// White_Space, \w its word characters. Throws as the constructor does.
  static std::string translated(std::string_view expression);

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace titan
