// The pre-tokenizer of a tokenizer.json: cutters that split text into pieces, each splitting the pieces of the one
// before. Immutable; each thread has its own Scratch. Knows pieces, not tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_node.h"
#include "piece_splitter.h"

namespace titan {

class PreTokenizer {
 public:
  /// `node`: the pre_tokenizer of the file, or nothing: text is not split. Throws Error(bad_data) with an unsupported
  /// type and the workaround.
  explicit PreTokenizer(const std::optional<JsonNode>& node);
  /// GPT-2's pre-tokenizer, for vocab.json and merges.txt.
  static PreTokenizer gpt2();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// Whether the model sees bytes (a ByteLevel cutter) rather than characters. Pieces are the text's own bytes in both
  /// cases: the vocabulary is translated once instead of every text.
  bool byte_level() const { return byte_level_; }

  /// A splitter equivalent to all cutters together, if there is one: the fast path.
  const PieceSplitter* splitter() const { return splitter_.get(); }

  struct Scratch {
    std::vector<std::string_view> pieces;  // result of `split`; valid until the next call
    std::vector<std::string_view> before;
    std::vector<size_t> openings;  // of the first pieces; those of the others are 0
    std::vector<size_t> openings_before;
    std::deque<std::string> changed;  // texts rewritten by a cutter
    std::vector<std::unique_ptr<Pattern::Scratch>> patterns;
  };

  /// Splits `text` into scratch.pieces. `opening`: how many bytes at the start of `text` stem from the document's first
  /// character: as in the package, the pieces that begin there are at the start of the document, which the first piece
  /// that is left need not be.
  void split(std::string_view text, size_t opening, Scratch& scratch) const;

  class Cutter;  // private to the implementation

 private:
  PreTokenizer();
  void add(const JsonNode& node);
  void choose_splitter();

  std::vector<std::unique_ptr<Cutter>> cutters_;
  std::unique_ptr<PieceSplitter> splitter_;
  bool byte_level_ = false;
};

/// The remedy for an unsupported part of a tokenizer; ends the sentence that names the part.
inline constexpr std::string_view kTokenizeOffline =
    "is not read here. Tokenise offline: write the ids with the tokenizer's own package, give them to titan_train data "
    "tokenize --ids, and train on the .bin file (docs/data.md has the lines)";

// Llama 3's limits on text before its expression splits it: segments, and so pieces, have a bounded length. Knows
// nothing of pieces or tokens.

/// Splits text into blocks of at most 400,000 characters, and splits each block so that no run of only whitespace or
/// only non-whitespace (by Python's str.isspace) exceeds 25,000 characters. Characters are code points.
class SegmentCutter {
 public:
  // The limits in Meta's tokenizer.py; ids of long texts depend on them.
  static constexpr int64_t kBlockCharacters = 400'000;
  static constexpr int64_t kRunCharacters = 25'000;

  /// `text` must be valid UTF-8 and outlive the cutter.
  explicit SegmentCutter(std::string_view text) : text_(text) {}

  /// The next segment, never empty; false at the end.
  bool next(std::string_view& segment);

 private:
  std::string_view text_;
  size_t begin_ = 0;      // of the next segment
  size_t run_begin_ = 0;  // of the current run; after a cut within it, of what is left of it
  size_t block_end_ = 0;
};

}  // namespace titan
