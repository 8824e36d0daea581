// How Llama 3 cuts text before byte-pair encoding: first into bounded segments, then by its regular expression into
// pieces that no merge crosses (torchtitan.md section 6). PCRE2 defines the pieces; plain ASCII takes a hand-written
// way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace titan {

/// Cuts text into blocks of at most 400,000 characters, and each block so that no run of only whitespace or only
/// non-whitespace (as Python's str.isspace judges) exceeds 25,000 characters. Characters are code points.
class SegmentCutter {
 public:
  static constexpr int64_t kBlockCharacters = 400'000;
  static constexpr int64_t kRunCharacters = 25'000;

  /// `text` must be valid UTF-8 and outlive the cutter.
  explicit SegmentCutter(std::string_view text) : text_(text) {}

  /// The next segment, never empty; false at the end.
  bool next(std::string_view& segment);

 private:
  std::string_view text_;
  size_t begin_ = 0;      // of the next segment
  size_t run_begin_ = 0;  // of a run, or the rest of one after a cut; everything before is settled
  size_t block_end_ = 0;
};

/// The Llama 3 regular expression, compiled once. `piece_end` may run on several threads, each with its own Scratch.
class Llama3Splitter {
 public:
  Llama3Splitter();
  ~Llama3Splitter();
  Llama3Splitter(const Llama3Splitter&) = delete;
  Llama3Splitter& operator=(const Llama3Splitter&) = delete;

  /// Working memory of the regular expression.
  class Scratch {
   public:
    explicit Scratch(const Llama3Splitter& splitter);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Llama3Splitter;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  /// Where the piece that begins at `begin` < segment.size() ends: > begin.
  size_t piece_end(std::string_view segment, size_t begin, Scratch& scratch) const {
    size_t end = ascii_piece_end(segment, begin);
    return end != 0 ? end : regex_piece_end(segment, begin, scratch);
  }

  /// The same by PCRE2 alone: the definition, and what decides wherever a piece touches a non-ASCII character.
  size_t regex_piece_end(std::string_view segment, size_t begin, Scratch& scratch) const;

  /// The same without PCRE2; 0 when a non-ASCII character could have a say.
  static size_t ascii_piece_end(std::string_view segment, size_t begin);

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace titan
