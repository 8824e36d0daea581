// The Jinja sources of chat templates: titan's own by name, one made of a config's texts, or that of a tokenizer's
// folder. Private to text.
#pragma once

#include <string>

#include "titan/text/chat.h"
#include "titan/text/tokenizer.h"

namespace titan {

struct ChatTemplateSource {
  std::string name;  ///< of a template from a folder: the file
  std::string text;
};

/// Throws Error with ExitCode::bad_config, or bad_data for a damaged file.
ChatTemplateSource chat_template_source(const ChatTemplateOptions& options);

/// The names of templates other than that of the tokenizer, for a message.
std::string chat_template_alternatives();

/// For a template selected by name: texts of the form <|…|> in it must be special tokens of the tokenizer.
void check_special_tokens(const ChatTemplateSource& source, const Tokenizer& tokenizer);

}  // namespace titan
