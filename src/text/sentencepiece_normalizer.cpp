// The normalisation of a SentencePiece model: its rules, which are a trie, and its treatment of spaces.
#include <cstring>
#include <string>

#include "sentencepiece_model.h"
#include "titan/base/error.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

// A unit of the double array (Darts): 8 bits of label, a flag that a value follows, and the offset of its children; in
// a value, the highest bit is set.
constexpr bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
constexpr uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
constexpr uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
constexpr uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

[[noreturn]] void fail(const char* what) {
  throw Error(ExitCode::bad_data,
              std::string("its normalisation rules ") + what + ". The file may be damaged: get it again.");
}

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : add_dummy_prefix_(model.add_dummy_prefix),
      remove_extra_whitespaces_(model.remove_extra_whitespaces),
      whitespace_as_suffix_(model.whitespace_as_suffix),
      space_(model.escape_whitespaces ? kWordMark : " "),
      user_defined_(user_defined_pieces(model)) {
  if (!model.charsmap.empty()) read_charsmap(model.charsmap);
  find_simple_bytes();
}

/// Format: the trie's size in 4 bytes, little-endian; the trie; the strings that it refers to.
void SentencePieceNormalizer::read_charsmap(std::string_view charsmap) {
  uint32_t bytes = 0;
  if (charsmap.size() <= sizeof bytes) fail("are cut short");
  std::memcpy(&bytes, charsmap.data(), sizeof bytes);
  charsmap.remove_prefix(sizeof bytes);
  if (bytes >= charsmap.size() || bytes < sizeof(uint32_t)) fail("are cut short");
  trie_.resize(bytes / sizeof(uint32_t));
  std::memcpy(trie_.data(), charsmap.data(), trie_.size() * sizeof(uint32_t));
  replacements_ = charsmap.substr(bytes);
  if (replacements_.back() != '\0') fail("do not end as they should");
}

void SentencePieceNormalizer::find_simple_bytes() {
  for (uint32_t c = 0; c < simple_.size(); ++c) {
    const char byte = static_cast<char>(c);
    const std::string_view text(&byte, 1);
    bool simple = !user_defined_.longest_at(text, 0) && rewrite_front(text).text == text;
    for (uint32_t next = 0; simple && next < 0x80; ++next) {
      // Looks up in the trie whether a rule continues with ASCII, since a longer rule may need more than two bytes.
      const uint32_t root = trie_.empty() ? 0 : offset_of(trie_[0]);
      uint32_t node = root ^ c;
      if (node >= trie_.size() || label_of(trie_[node]) != c) break;
      node ^= offset_of(trie_[node]) ^ next;
      if (next != 0 && node < trie_.size() && label_of(trie_[node]) == next) simple = false;
    }
    simple_[c] = simple;
  }
  if (user_defined_.empty()) return;
  // A user-defined piece may start and continue with any byte.
  for (uint32_t c = 0; c < simple_.size(); ++c) {
    if (user_defined_.begins_with(static_cast<unsigned char>(c))) simple_[c] = false;
  }
}

SentencePieceNormalizer::Rewritten SentencePieceNormalizer::rewrite_front(std::string_view text) const {
  if (const AddedToken* piece = user_defined_.longest_at(text, 0)) {
    return {text.substr(0, piece->content.size()), piece->content.size()};
  }
  const Rewritten by_rule = rewrite_by_rule(text);
  if (by_rule.taken > 0) return by_rule;
  const size_t length = utf8_length(static_cast<unsigned char>(text[0]));
  return {text.substr(0, length), length};
}

/// Applies the longest matching rule; consumes nothing if there is none.
SentencePieceNormalizer::Rewritten SentencePieceNormalizer::rewrite_by_rule(std::string_view text) const {
  Rewritten found{{}, 0};
  if (trie_.empty()) return found;
  uint32_t node = offset_of(trie_[0]);
  uint32_t value = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t label = static_cast<unsigned char>(text[i]);
    node ^= label;
    if (node >= trie_.size() || label_of(trie_[node]) != label) break;
    const uint32_t unit = trie_[node];
    node ^= offset_of(unit);
    if (!has_value(unit)) continue;
    if (node >= trie_.size()) break;
    value = value_of(trie_[node]);
    found.taken = i + 1;
  }
  if (found.taken == 0) return found;
  if (value >= replacements_.size()) fail("point outside of themselves");
  found.text = replacements_.c_str() + value;
  return found;
}

SentencePieceNormalizer::Pass::Pass(const SentencePieceNormalizer& owner, std::string_view text)
    : owner_(owner), rest_(text), after_space_(owner.remove_extra_whitespaces_) {
  if (!owner_.remove_extra_whitespaces_) return;
  while (!rest_.empty()) {
    const Rewritten front = owner_.rewrite_front(rest_);
    if (front.text != " ") break;
    rest_.remove_prefix(front.taken);
  }
}

void SentencePieceNormalizer::Pass::append(std::string_view piece, std::string& out) {
  while (after_space_ && piece.starts_with(' ')) piece.remove_prefix(1);
  if (!piece.empty()) {
    for (char c : piece) {
      if (c == ' ') {
        out += owner_.space_;
      } else {
        out += c;
      }
    }
    after_space_ = piece.ends_with(' ');
  }
  if (!owner_.remove_extra_whitespaces_) after_space_ = false;
}

bool SentencePieceNormalizer::Pass::run(size_t bytes, std::string& out) {
  if (!started_) {
    started_ = true;
    wrote_nothing_ = rest_.empty();
    if (!wrote_nothing_ && owner_.add_dummy_prefix_ && !owner_.whitespace_as_suffix_) out += owner_.space_;
  }
  auto is_simple = [&](size_t i) {
    const auto c = static_cast<unsigned char>(rest_[i]);
    return c < 0x80 && c != ' ' && owner_.simple_[c];
  };
  while (!rest_.empty() && out.size() < bytes) {
    size_t plain = 0;
    while (plain < rest_.size() && is_simple(plain)) ++plain;
    // The last of them may form a rule with the next character, unless that is ASCII as well.
    if (plain > 0 && plain < rest_.size() && static_cast<unsigned char>(rest_[plain]) >= 0x80) --plain;
    if (plain > 0) {
      out.append(rest_.substr(0, plain));
      rest_.remove_prefix(plain);
      after_space_ = false;
      continue;
    }
    const bool is_plain_space =
        rest_[0] == ' ' && owner_.simple_[' '] && (rest_.size() == 1 || static_cast<unsigned char>(rest_[1]) < 0x80);
    if (is_plain_space) {
      if (!after_space_) out += owner_.space_;
      after_space_ = owner_.remove_extra_whitespaces_;
      rest_.remove_prefix(1);
      continue;
    }
    const Rewritten front = owner_.rewrite_front(rest_);
    append(front.text, out);
    rest_.remove_prefix(front.taken);
  }
  if (!rest_.empty()) return true;
  if (wrote_nothing_) return false;
  if (owner_.remove_extra_whitespaces_) {
    while (out.ends_with(owner_.space_)) out.resize(out.size() - owner_.space_.size());
  }
  if (owner_.add_dummy_prefix_ && owner_.whitespace_as_suffix_) out += owner_.space_;
  wrote_nothing_ = true;
  return false;
}

}  // namespace titan
