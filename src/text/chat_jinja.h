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
    size_t begin;        // offset in `output.text`; may be its end
    size_t characters;   // not bytes
    size_t message = 0;  // the number of the message that a loop around it stands at, from 1; 0: there is none
  };

  /// What one iteration of a loop wrote, unless it is a loop in a macro or in a block that is captured.
  struct Iteration {
    size_t begin, end;  // offsets in `output.text`
    size_t message;     // the number of the message that the loop stands at, from 1; 0: another value
  };

  TracedText output = {};
  std::vector<Mark> marks = {};
  std::vector<Iteration> iterations = {};
  /// Per message: the names of its fields beside role and content that the template read.
  std::vector<std::vector<std::string>> read = {};
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
