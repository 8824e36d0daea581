#include "added_tokens.h"

#include <algorithm>

#include "titan/text/utf8.h"

namespace titan {
namespace {

uint32_t byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

constexpr uint32_t kNoToken = UINT32_MAX;

uint32_t start_of(const std::string& content) {
  return content.size() == 1 ? 0x10000 + byte_at(content, 0) : byte_at(content, 0) << 8 | byte_at(content, 1);
}

/// Where the whitespace before `at` begins, at `least` or later.
size_t whitespace_before(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    const size_t before = previous_character(text, at);
    if (!is_white_space(first_code_point(text.substr(before)))) break;
    at = before;
  }
  return at;
}

size_t whitespace_after(std::string_view text, size_t at) {
  while (at < text.size() && is_white_space(first_code_point(text.substr(at)))) {
    at += utf8_length(static_cast<unsigned char>(text[at]));
  }
  return at;
}

}  // namespace

void AddedVocabulary::put(AddedToken token) {
  highest_ = std::max(highest_, token.id);
  std::string content = token.content;
  tokens_.insert_or_assign(std::move(content), std::move(token));
}

int32_t AddedVocabulary::add(AddedToken token) {
  if (token.content.empty()) return -1;
  if (auto known = tokens_.find(token.content); known != tokens_.end()) {
    token.special = token.special || known->second.special;  // the package never takes this back
    token.id = known->second.id;
  } else {
    token.id = find_(token.content).value_or(std::max(highest_ + 1, count_));
  }
  const int32_t id = token.id;
  put(std::move(token));
  return id;
}

const AddedToken* AddedVocabulary::find(const std::string& content) const {
  auto found = tokens_.find(content);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::optional<int32_t> AddedVocabulary::id_of(const std::string& content) const {
  const AddedToken* token = find(content);
  return token ? std::optional(token->id) : find_(content);
}

std::vector<AddedToken> AddedVocabulary::tokens() const {
  std::vector<AddedToken> all;
  for (const auto& [content, token] : tokens_) all.push_back(token);
  std::sort(all.begin(), all.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.id != b.id ? a.id < b.id : a.content < b.content;
  });
  return all;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  // Of tokens with the same content the first one counts: a stable sort keeps it in front.
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  // The last token and those that it begins with: in sorted order they alone can be beginnings of the next one.
  std::vector<uint32_t> open;
  for (uint32_t index = 0; index < tokens_.size(); ++index) {
    const std::string& content = tokens_[index].content;
    while (!open.empty() && !content.starts_with(tokens_[open.back()].content)) open.pop_back();
    beginning_.push_back(open.empty() ? kNoToken : open.back());
    open.push_back(index);
    first_[byte_at(content, 0)] = true;
    by_start_.try_emplace(start_of(content), Range{index, index}).first->second.end = index + 1;
  }
}

bool AddedTokenFinder::is_word_character(std::string_view text, size_t at) const {
  const uint32_t c = byte_at(text, at);
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  Pattern::Scratch scratch(word_);
  Pattern::Match match;
  return word_.find(text.substr(at, utf8_length(static_cast<unsigned char>(c))), 0, scratch, match);
}

/// The longest token of `range` that `text` begins with. All of those begin the last token that is not after the text,
/// so a binary search and the links from it find the longest; comparing with every token would be quadratic.
const AddedToken* AddedTokenFinder::longest_in(const Range& range, std::string_view text) const {
  const auto first = tokens_.begin() + range.begin;
  const auto after =
      std::upper_bound(first, tokens_.begin() + range.end, text,
                       [](std::string_view whole, const AddedToken& token) { return whole < token.content; });
  if (after == first) return nullptr;
  const std::string& last = (after - 1)->content;
  const auto common =
      static_cast<size_t>(std::mismatch(last.begin(), last.end(), text.begin(), text.end()).first - last.begin());
  auto index = static_cast<uint32_t>(after - 1 - tokens_.begin());
  while (index != kNoToken && tokens_[index].content.size() > common) index = beginning_[index];
  return index == kNoToken ? nullptr : &tokens_[index];
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  if (!first_[byte_at(text, at)]) return nullptr;
  if (at + 1 < text.size()) {
    if (auto found = by_start_.find(byte_at(text, at) << 8 | byte_at(text, at + 1)); found != by_start_.end()) {
      if (const AddedToken* token = longest_in(found->second, text.substr(at))) return token;
    }
  }
  auto found = by_start_.find(0x10000 + byte_at(text, at));
  return found == by_start_.end() ? nullptr : &tokens_[found->second.begin];
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts, bool special) const {
  size_t settled = 0;
  // Where whitespace was last read to: many tokens may strip the same run, which would else be read once for each.
  size_t blank_end = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->special && !special) continue;
    const bool in_a_word = (begin > 0 && is_word_character(text, previous_character(text, begin))) ||
                           (end < text.size() && is_word_character(text, end));
    if (token->single_word && in_a_word) continue;
    if (token->lstrip) begin = std::max(whitespace_before(text, begin, settled), settled);
    if (token->rstrip) end = blank_end = end <= blank_end ? blank_end : whitespace_after(text, end);
    if (settled < begin) parts.push_back({text.substr(settled, begin - settled), nullptr});
    if (begin < end)
      parts.push_back({text.substr(begin, end - begin), token});  // the token before may have stripped all of it
    settled = end;
  }
  if (settled < text.size()) parts.push_back({text.substr(settled), nullptr});
}

}  // namespace titan
