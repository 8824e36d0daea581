#include "pre_tokenizer.h"

#include <fmt/format.h>
#include <algorithm>

#include "titan/base/error.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Pieces = std::vector<std::string_view>;

/// What happens to the matches of a delimiter (tokenizers' SplitDelimiterBehavior).
enum class Delimiters { isolated, removed, merged_with_next, merged_with_previous, contiguous };

std::optional<Delimiters> delimiters_named(std::string_view name) {
  if (name == "Isolated") return Delimiters::isolated;
  if (name == "Removed") return Delimiters::removed;
  if (name == "MergedWithNext") return Delimiters::merged_with_next;
  if (name == "MergedWithPrevious") return Delimiters::merged_with_previous;
  if (name == "Contiguous") return Delimiters::contiguous;
  return std::nullopt;
}

/// Outputs the text between matches, and the matches according to `delimiters`. `invert`: matches and the text between
/// them change places.
class DelimiterCutter {
 public:
  DelimiterCutter(std::string_view text, Delimiters delimiters, bool invert, Pieces& out)
      : text_(text), delimiters_(delimiters), invert_(invert), out_(out) {}

  void match(size_t begin, size_t end) {
    if (settled_ < begin) take(begin, invert_);
    take(end, !invert_);
  }

  void finish() {
    if (settled_ < text_.size()) take(text_.size(), invert_);
    if (begin_ < settled_) emit(begin_, settled_);
  }

 private:
  /// The next stretch ends at `end`; `is_match` after inversion.
  void take(size_t end, bool is_match) {
    switch (delimiters_) {
      case Delimiters::isolated:
        emit(settled_, end);
        begin_ = end;
        break;
      case Delimiters::removed:
        if (!is_match) emit(settled_, end);
        begin_ = end;
        break;
      case Delimiters::merged_with_next:
        if (is_match || !follows_match_) flush(settled_);
        break;
      case Delimiters::merged_with_previous:
        if (!is_match || follows_match_) flush(settled_);
        break;
      case Delimiters::contiguous:
        if (is_match != follows_match_) flush(settled_);
        break;
    }
    follows_match_ = is_match;
    settled_ = end;
  }

  void flush(size_t end) {
    emit(begin_, end);
    begin_ = end;
  }
  void emit(size_t begin, size_t end) {
    if (begin < end) out_.push_back(text_.substr(begin, end - begin));
  }

  std::string_view text_;
  Delimiters delimiters_;
  bool invert_;
  Pieces& out_;
  size_t begin_ = 0;    // of the piece that is not yet output
  size_t settled_ = 0;  // the text before it has been taken
  bool follows_match_ = false;
};

}  // namespace

/// Splits one piece into several.
class PreTokenizer::Cutter {
 public:
  virtual ~Cutter() = default;
  virtual std::unique_ptr<Pattern::Scratch> make_scratch() const { return nullptr; }
  /// `opening`: the bytes at the start of the piece that stem from the document's first character; a cutter that writes
  /// another text sets it to theirs.
  virtual void cut(std::string_view piece, std::string_view& opening, Pattern::Scratch* pattern,
                   std::deque<std::string>& changed, Pieces& out) const = 0;
  /// The rule by which it splits, if PieceSplitter has that rule and every byte of the piece is kept.
  virtual std::optional<PieceSplitter::Rule> rule() const { return std::nullopt; }
  /// True if it never changes or splits a piece.
  virtual bool idle() const { return false; }
};

namespace {

class SplitCutter : public PreTokenizer::Cutter {
 public:
  explicit SplitCutter(const JsonNode& node) : invert_(node.flag("invert", false)) {
    const JsonNode pattern = node.at("pattern");
    const std::string behavior = node.text("behavior");
    const std::optional<Delimiters> delimiters = delimiters_named(behavior);
    if (!delimiters) node.fail(fmt::format("has the behavior {}, which {}.", behavior, kTokenizeOffline));
    delimiters_ = *delimiters;
    if (std::optional<JsonNode> literal = pattern.find("String")) {
      literal_ = literal->text();
      if (literal_.empty()) literal->fail("is empty. Give a text to split at.");
    } else {
      expression_ = pattern.text("Regex");
      try {
        pattern_ = std::make_unique<Pattern>(expression_, Pattern::Anchor::anywhere);
      } catch (const Error& error) {
        pattern.fail(fmt::format("{} {}: {}.", "Regex", kTokenizeOffline, error.what()));
      }
    }
  }

  std::unique_ptr<Pattern::Scratch> make_scratch() const override {
    return pattern_ ? std::make_unique<Pattern::Scratch>(*pattern_) : nullptr;
  }

  void cut(std::string_view piece, std::string_view&, Pattern::Scratch* scratch, std::deque<std::string>&,
           Pieces& out) const override {
    DelimiterCutter cutter(piece, delimiters_, invert_, out);
    if (pattern_) {
      Pattern::Walk walk;
      for (Pattern::Match match; pattern_->next(piece, walk, *scratch, match);) cutter.match(match.begin, match.end);
    } else {
      for (size_t at = piece.find(literal_); at != piece.npos; at = piece.find(literal_, at + literal_.size())) {
        cutter.match(at, at + literal_.size());
      }
    }
    cutter.finish();
  }

  std::optional<PieceSplitter::Rule> rule() const override {
    return delimiters_ == Delimiters::isolated && pattern_ ? PieceSplitter::rule_of(expression_) : std::nullopt;
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string expression_;
  std::string literal_;
  Delimiters delimiters_ = Delimiters::isolated;
  bool invert_;
};

/// Splits off numbers: all adjacent digits together or each digit alone.
class DigitsCutter : public PreTokenizer::Cutter {
 public:
  explicit DigitsCutter(const JsonNode& node)
      : pattern_(node.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", Pattern::Anchor::anywhere) {}

  std::unique_ptr<Pattern::Scratch> make_scratch() const override {
    return std::make_unique<Pattern::Scratch>(pattern_);
  }

  void cut(std::string_view piece, std::string_view&, Pattern::Scratch* scratch, std::deque<std::string>&,
           Pieces& out) const override {
    DelimiterCutter cutter(piece, Delimiters::isolated, false, out);
    Pattern::Match match;
    for (size_t at = 0; at < piece.size() && pattern_.find(piece, at, *scratch, match); at = match.end) {
      cutter.match(match.begin, match.end);
    }
    cutter.finish();
  }

 private:
  Pattern pattern_;
};

class ByteLevelCutter : public PreTokenizer::Cutter {
 public:
  ByteLevelCutter(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) splitter_ = std::make_unique<PieceSplitter>(PieceSplitter::Rule::gpt2);
  }

  std::unique_ptr<Pattern::Scratch> make_scratch() const override {
    return splitter_ ? std::make_unique<PieceSplitter::Scratch>(*splitter_) : nullptr;
  }

  void cut(std::string_view piece, std::string_view& opening, Pattern::Scratch* scratch,
           std::deque<std::string>& changed, Pieces& out) const override {
    opening = {};  // it is the last cutter
    if (add_prefix_space_ && !piece.starts_with(' ')) piece = changed.emplace_back(" " + std::string(piece));
    if (!splitter_) {
      out.push_back(piece);
      return;
    }
    auto& own = static_cast<PieceSplitter::Scratch&>(*scratch);
    for (size_t begin = 0, end; begin < piece.size(); begin = end) {
      end = splitter_->piece_end(piece, begin, own);
      out.push_back(piece.substr(begin, end - begin));
    }
  }

  std::optional<PieceSplitter::Rule> rule() const override {
    return splitter_ && !add_prefix_space_ ? std::optional(PieceSplitter::Rule::gpt2) : std::nullopt;
  }
  bool idle() const override { return !splitter_ && !add_prefix_space_; }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PieceSplitter> splitter_;
};

/// Replaces spaces by a visible character, prepends one, and splits before each.
class MetaspaceCutter : public PreTokenizer::Cutter {
 public:
  explicit MetaspaceCutter(const JsonNode& node)
      : replacement_(node.text("replacement")), split_(node.flag("split", true)) {
    if (replacement_.empty()) node.fail("has an empty replacement. Give the character that stands for a space.");
    if (std::optional<JsonNode> scheme = node.find("prepend_scheme")) {
      scheme_ = scheme->text();
    } else {
      scheme_ = node.flag("add_prefix_space", true) ? "always" : "never";
    }
    if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never") {
      node.fail(fmt::format("has the prepend_scheme {}, which {}.", scheme_, kTokenizeOffline));
    }
  }

  void cut(std::string_view piece, std::string_view& opening, Pattern::Scratch*, std::deque<std::string>& changed,
           Pieces& out) const override {
    std::string& text = changed.emplace_back();
    const bool at_start = !opening.empty();
    append(opening, text);
    size_t opened = text.size();
    append(piece.substr(opening.size()), text);
    const bool prepend = scheme_ == "always" || (scheme_ == "first" && at_start);
    if (prepend && !text.starts_with(replacement_)) {
      text.insert(0, replacement_);
      if (at_start) opened += replacement_.size();
    }
    opening = std::string_view(text).substr(0, opened);
    if (!split_) {
      out.push_back(text);
      return;
    }
    DelimiterCutter cutter(text, Delimiters::merged_with_next, false, out);
    for (size_t at = text.find(replacement_); at != text.npos; at = text.find(replacement_, at + replacement_.size())) {
      cutter.match(at, at + replacement_.size());
    }
    cutter.finish();
  }

 private:
  void append(std::string_view piece, std::string& text) const {
    for (char c : piece) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
  }

  std::string replacement_;
  std::string scheme_;
  bool split_;
};

}  // namespace

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

PreTokenizer::PreTokenizer(const std::optional<JsonNode>& node) {
  if (node) add(*node);
  choose_splitter();
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer made;
  made.cutters_.push_back(std::make_unique<ByteLevelCutter>(false, true));
  made.byte_level_ = true;
  made.choose_splitter();
  return made;
}

void PreTokenizer::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (byte_level_) node.fail(fmt::format("is a {} after ByteLevel, which {}.", type, kTokenizeOffline));
  if (type == "Sequence") {
    const JsonNode all = node.at("pretokenizers");
    for (size_t i = 0; i < all.size(); ++i) add(all.at(i));
  } else if (type == "Split") {
    cutters_.push_back(std::make_unique<SplitCutter>(node));
  } else if (type == "Digits") {
    cutters_.push_back(std::make_unique<DigitsCutter>(node));
  } else if (type == "ByteLevel") {
    const bool prefix = node.flag("add_prefix_space", true);
    cutters_.push_back(std::make_unique<ByteLevelCutter>(prefix, node.flag("use_regex", true)));
    byte_level_ = true;
  } else if (type == "Metaspace") {
    cutters_.push_back(std::make_unique<MetaspaceCutter>(node));
  } else {
    node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  }
}

void PreTokenizer::choose_splitter() {
  std::erase_if(cutters_, [](const auto& cutter) { return cutter->idle(); });
  if (cutters_.size() != 1) return;
  if (auto rule = cutters_[0]->rule()) splitter_ = std::make_unique<PieceSplitter>(*rule);
}

void PreTokenizer::split(std::string_view text, size_t opening, Scratch& scratch) const {
  if (scratch.patterns.size() != cutters_.size()) {
    scratch.patterns.clear();
    for (const auto& cutter : cutters_) scratch.patterns.push_back(cutter->make_scratch());
  }
  for (const auto& pattern : scratch.patterns) {
    if (pattern) pattern->start_text();
  }
  scratch.changed.clear();
  scratch.pieces.assign(1, text);
  scratch.openings.assign(1, std::min(opening, text.size()));
  for (size_t i = 0; i < cutters_.size(); ++i) {
    std::swap(scratch.pieces, scratch.before);
    std::swap(scratch.openings, scratch.openings_before);
    scratch.pieces.clear();
    scratch.openings.clear();
    for (size_t k = 0; k < scratch.before.size(); ++k) {
      const std::string_view piece = scratch.before[k];
      std::string_view start = piece.substr(0, k < scratch.openings_before.size() ? scratch.openings_before[k] : 0);
      size_t made = scratch.pieces.size();
      cutters_[i]->cut(piece, start, scratch.patterns[i].get(), scratch.changed, scratch.pieces);
      const char* end = start.data() + start.size();
      for (; !start.empty() && made < scratch.pieces.size() && scratch.pieces[made].data() < end; ++made) {
        scratch.openings.push_back(
            std::min(static_cast<size_t>(end - scratch.pieces[made].data()), scratch.pieces[made].size()));
      }
    }
  }
}

namespace {

/// Python's str.isspace of one character: Unicode category Zs, or bidirectional type WS, B or S.
bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_space_at(std::string_view text, size_t at) { return is_python_space(first_code_point(text.substr(at, 4))); }

/// The last boundary in (begin, end] between whitespace and non-whitespace, or `begin` if there is none.
size_t last_change(std::string_view text, size_t begin, size_t end) {
  bool space = is_space_at(text, end);
  for (size_t at = end; at > begin;) {
    size_t before = previous_character(text, at);
    if (is_space_at(text, before) != space) return at;
    at = before;
  }
  return begin;
}

}  // namespace

bool SegmentCutter::next(std::string_view& segment) {
  if (begin_ >= text_.size()) return false;
  auto emit = [&](size_t end) {
    segment = text_.substr(begin_, end - begin_);
    begin_ = run_begin_ = end;
    return true;
  };
  if (begin_ == block_end_) block_end_ = advance_characters(text_, begin_, kBlockCharacters);
  // Jump to where a run from run_begin_ would become too long, and search backwards for its end: in ordinary text that
  // is the last word boundary, so only a few characters are read.
  while (true) {
    size_t limit = advance_characters(text_, run_begin_, kRunCharacters);
    if (limit >= block_end_) return emit(block_end_);
    size_t change = last_change(text_, run_begin_, limit);
    if (change == run_begin_) return emit(limit);
    run_begin_ = change;
  }
}

}  // namespace titan
