// The pre-tokenizer of a tokenizer.json: stages that cut text into pieces, each cutting what the one before left.
// Immutable once built; threads bring their own Scratch. Knows pieces, not tokens.
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
  /// `node`: the pre_tokenizer of the file, or nothing for one that leaves text whole. Throws Error(bad_data) naming a
  /// type that is not read here, with the way out.
  explicit PreTokenizer(const std::optional<JsonNode>& node);
  /// GPT-2's, for vocab.json and merges.txt.
  static PreTokenizer gpt2();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;

  /// Whether the model sees bytes (a ByteLevel stage) rather than characters. Pieces are the text's own bytes in both
  /// cases: the model's vocabulary is translated instead of every text.
  bool byte_level() const { return byte_level_; }

  /// The splitter that does the same as all stages together, where there is one: the fast way.
  const PieceSplitter* splitter() const { return splitter_.get(); }

  struct Scratch {
    std::vector<std::string_view> pieces;  // what `split` found; valid until the next call
    std::vector<std::string_view> before;
    std::deque<std::string> changed;  // texts that a stage rewrote
    std::vector<std::unique_ptr<Pattern::Scratch>> patterns;
  };

  /// Cuts `text` into scratch.pieces. `at_start`: the text begins where the document begins.
  void split(std::string_view text, bool at_start, Scratch& scratch) const;

  class Stage;  // one stage: private to the implementation

 private:
  PreTokenizer();
  void add(const JsonNode& node);
  void choose_splitter();

  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<PieceSplitter> splitter_;
  bool byte_level_ = false;
};

/// What to do about a part of a tokenizer that is not read here; ends the sentence that names the part.
inline constexpr std::string_view kTokenizeOffline =
    "is not read here. Tokenise offline: write the ids with the tokenizer's own package, give them to titan_train data "
    "tokenize --ids, and train on the .bin file (docs/data.md has the lines)";

// How Llama 3 bounds text before its expression cuts it: no segment is endless, so no piece
// is. Pure text; knows nothing of pieces or tokens.

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

}  // namespace titan
