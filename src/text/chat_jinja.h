// Renders a chat template's Jinja source for a conversation and records which output bytes come from which message:
// every text in the template carries the origin of its bytes, so trimming, splitting and joining need no markers in it.
// Owned by data; immutable.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "chat_jinja_syntax.h"
#include "chat_jinja_value.h"
#include "titan/text/chat.h"

namespace titan::jinja {

struct Rendered {
  /// What one {% generation %} block wrote, as `transformers` finds it. Inside a macro or a block that is captured,
  /// `begin` is where the output outside of it ends.
  struct Mark {
    size_t begin;       // offset in `output.text`; may be its end
    size_t characters;  // not bytes
  };

  TracedText output = {};
  std::vector<Mark> marks = {};
};

class Template {
 public:
  /// Throws TemplateError.
  explicit Template(std::string_view source) : syntax_(parse_template(source)) {}

  /// Whether {% generation %} marks what counts.
  bool has_marks() const { return syntax_.has_generation; }

  /// The output of `apply_chat_template` for these messages (valid UTF-8), without tools, with the variables `names`
  /// (bos_token) and `variables`. Throws TemplateError.
  Rendered write(const std::vector<ChatMessage>& messages, bool generate,
                 const std::map<std::string, std::string>& names, const std::vector<ChatField>& variables = {}) const;

 private:
  Syntax syntax_;
};

}  // namespace titan::jinja
