#include "added_tokens.h"

#include <algorithm>

#include "titan/data/utf8.h"

namespace titan {
namespace {

uint32_t byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

size_t whitespace_before(std::string_view text, size_t at) {
  while (at > 0) {
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
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (uint32_t index = 0; index < tokens_.size(); ++index) {
    const std::string& content = tokens_[index].content;
    first_[byte_at(content, 0)] = true;
    const uint32_t start =
        content.size() == 1 ? 0x10000 + byte_at(content, 0) : byte_at(content, 0) << 8 | byte_at(content, 1);
    by_start_[start].push_back(index);
  }
}

bool AddedTokenFinder::is_word_character(std::string_view text, size_t at) const {
  const uint32_t c = byte_at(text, at);
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  Pattern::Scratch scratch(word_);
  Pattern::Match match;
  return word_.find(text.substr(at, utf8_length(static_cast<unsigned char>(c))), 0, scratch, match);
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  if (!first_[byte_at(text, at)]) return nullptr;
  if (at + 1 < text.size()) {
    if (auto found = by_start_.find(byte_at(text, at) << 8 | byte_at(text, at + 1)); found != by_start_.end()) {
      for (uint32_t index : found->second) {
        if (text.substr(at).starts_with(tokens_[index].content)) return &tokens_[index];
      }
    }
  }
  auto found = by_start_.find(0x10000 + byte_at(text, at));
  return found == by_start_.end() ? nullptr : &tokens_[found->second.front()];
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts, bool special) const {
  size_t settled = 0;  // the text before it is in `parts`
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
    if (token->lstrip) begin = std::max(whitespace_before(text, begin), settled);
    if (token->rstrip) end = whitespace_after(text, end);
    if (settled < begin) parts.push_back({text.substr(settled, begin - settled), nullptr});
    if (begin < end) parts.push_back({text.substr(begin, end - begin), token});  // else the token before has taken it
    settled = end;
  }
  if (settled < text.size()) parts.push_back({text.substr(settled), nullptr});
}

}  // namespace titan
