// What a chat template sees of a conversation: messages and other fields as Jinja's values. Owned by data.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "chat_jinja_value.h"
#include "titan/text/chat.h"

namespace titan::jinja {

/// Bytes of a conversation, by which the budget of a run grows.
size_t size_of(const std::vector<ChatMessage>& messages, const std::vector<ChatField>& variables);

/// Defines `variables`, which replace names of the scope, and "messages", whose contents have the origins of
/// TracedText. Returns the messages. Throws TemplateError.
Value define_conversation(Heap& heap, Scope& scope, const std::vector<ChatMessage>& messages,
                          const std::vector<ChatField>& variables);

/// The names of the fields of a message, beside role and content, that the template has read.
std::vector<std::string> read_fields(const Dictionary& message);

}  // namespace titan::jinja
