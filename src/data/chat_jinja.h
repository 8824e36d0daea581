// Renders a chat template's Jinja source for a conversation and records which output bytes come from which message:
// every text in the template carries the origin of its bytes, so trimming, splitting and joining need no markers in it.
// Owned by data; immutable.
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

  /// The output of `apply_chat_template` for these messages (valid UTF-8), without tools and with the variables `names`
  /// (bos_token) and `variables`. strftime_now is undefined; if called anyway, it returns a fixed day. The origin of a
  /// message's content is its index + 1; that of its other fields, the same plus the number of messages. Throws
  /// TemplateError.
  TracedText write(const std::vector<ChatMessage>& messages, bool generate,
                   const std::map<std::string, std::string>& names, const std::vector<ChatField>& variables = {}) const;

 private:
  std::vector<Statement> statements_;
};

}  // namespace titan::jinja
