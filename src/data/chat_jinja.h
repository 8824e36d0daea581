// Runs a chat template's Jinja source over a conversation and tells which bytes of the result are a message's: every
// text that the template handles carries where each of its bytes is from, so that trimming, splitting and joining need
// no marks in it. Owned by data; immutable.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat_jinja_syntax.h"
#include "chat_jinja_value.h"
#include "titan/data/chat.h"

namespace titan::jinja {

class Template {
 public:
  /// Throws TemplateError.
  explicit Template(std::string_view source) : statements_(parse_template(source)) {}

  /// What `apply_chat_template` writes for these messages, which are valid UTF-8, without tools and with the texts
  /// `names` (bos_token). strftime_now is undefined and, where it is called all the same, says one day. Throws
  /// TemplateError.
  TracedText write(const std::vector<ChatMessage>& messages, bool generate,
                   const std::map<std::string, std::string>& names) const;

 private:
  std::vector<Statement> statements_;
};

}  // namespace titan::jinja
