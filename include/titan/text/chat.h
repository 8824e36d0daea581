// Conversations, and the templates that convert them to token ids. Every template is Jinja source: from the tokenizer's
// folder, built in, or made of a prefix and a suffix per role. Ids equal those of apply_chat_template(tokenize=True) of
// the package `transformers`. Owned by data; a template is immutable after opening and thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/text/tokenizer.h"

namespace titan {

/// A field of a message or of a part of its content, or a variable of the template.
struct ChatField {
  std::string name;
  std::string json;  ///< its value; empty: a template that prints it fails

  bool operator==(const ChatField&) const = default;
};

/// A part of a content that is a list of texts.
struct ChatPart {
  std::string text;
  /// All its fields. The text comes where "text" stands among them, whose value is ignored, else last.
  std::vector<ChatField> fields = {{"type", "\"text\""}};

  bool operator==(const ChatPart&) const = default;
};

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;
  /// Of a content that is a list of texts, which `content` then concatenates. Templates that loop over a content get
  /// the list.
  std::vector<ChatPart> parts = {};
  /// name, reasoning_content, …: what the template may read as well. Role and content come where "role" and "content"
  /// stand among them, whose values are ignored, else first.
  std::vector<ChatField> fields = {};
  /// Whether its text is a label. Nothing: it is if the role is assistant.
  std::optional<bool> is_label = {};

  bool operator==(const ChatMessage&) const = default;
};

struct EncodedChat {
  std::vector<int32_t> ids;
  /// The label mask, per id: 1 for the assistant's turn, from the end of the prompt to the special token that ends the
  /// turn (without one: to the end of the text after the content), else 0. An id is 1 if any of its characters is.
  std::vector<uint8_t> counts;
  /// Why the conversation cannot be encoded, as the end of a sentence; then there are no ids. Empty: no problem.
  std::string problem = {};
  /// Per message: the names of its fields beside role and content that the template read.
  std::vector<std::vector<std::string>> read = {};
};

struct ChatTemplateOptions {
  /// llama2, llama3, llama3_1, chatml, custom, or auto: the template in the tokenizer's folder
  std::string name = "auto";
  std::filesystem::path tokenizer = {};  ///< for auto: the tokenizer's folder, or a file in it

  ChatSection custom = {};  ///< for "custom"; names of special tokens in these texts become their ids
  bool all_count = false;   ///< every id is a label
};

/// Valid values of `ChatTemplateOptions::name`.
std::vector<std::string> chat_template_names();

class ChatTemplate {
 public:
  /// Throws Error(bad_config): auto, and the folder has no template or one that is not supported; a named template uses
  /// a special token that the tokenizer does not have.
  ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer);
  ~ChatTemplate();

  /// Encodes a whole conversation. Message text that looks like a special token is ordinary text, except for
  /// non-special added tokens of a Hugging Face tokenizer and user-defined pieces of a SentencePiece model.
  /// (`transformers` encodes it as special tokens.) `variables`: what the template may read beside the messages
  /// (chat_template_kwargs).
  EncodedChat encode(const std::vector<ChatMessage>& messages, const std::vector<ChatField>& variables = {}) const;

  /// Encodes the conversation so far, up to the start of the assistant's next turn (add_generation_prompt).
  EncodedChat prompt(const std::vector<ChatMessage>& messages) const;

  /// Ids that end the assistant's turn: the special token after it, and the tokenizer's end-of-text id.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  /// Text that ends the assistant's turn if no special token does; else empty.
  const std::string& stop_text() const { return stop_text_; }

  /// Whether the template's source has the word `field`: it may read a field or a variable of this name.
  bool mentions(std::string_view field) const;

  /// The template's name, or the path of its file.
  const std::string& name() const { return name_; }
  /// The template's Jinja source.
  const std::string& source() const { return source_; }

 private:
  struct Form;

  std::string name_, source_;
  std::unique_ptr<Form> form_;
  std::vector<int32_t> stop_ids_;
  std::string stop_text_;
};

}  // namespace titan
