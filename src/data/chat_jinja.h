// The part of Jinja that published chat templates use, run to see what a template makes of a conversation. Whatever
// this does not know, and whatever looks into a message's text, is refused rather than guessed. Owned by data;
// immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/data/chat.h"

namespace titan {

/// Python's str.strip, which Jinja's trim is.
std::string_view strip_white_space(std::string_view text);

class ChatJinja {
 public:
  /// Names of a tokenizer's special tokens in a template.
  static constexpr std::string_view kBos = "\1bos_token\1", kEos = "\1eos_token\1";

  /// Nothing: the source holds what is not known here.
  static std::optional<ChatJinja> parse(std::string_view source);

  /// What `apply_chat_template` writes for these messages without tools, special tokens by their names above.
  /// Nothing: the template refuses them, looks into a text, or does what is not known here.
  std::optional<std::string> write(const std::vector<ChatMessage>& messages, bool generate) const;

  /// Whether one of the template's literals is this text.
  bool has_literal(std::string_view text) const;

 private:
  struct Parsed;

  explicit ChatJinja(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace titan
