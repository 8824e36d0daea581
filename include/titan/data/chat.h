// Conversations and the templates that write them as token ids. Every template is Jinja source: that of the tokenizer's
// folder, a built-in one, or one made of a prefix and a suffix per role. Ids are those of
// apply_chat_template(tokenize=True) of the package `transformers`.
// Owned by data; a template is immutable once opened and may be used from several threads at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/data/tokenizer.h"

namespace titan {

struct ChatMessage {
  std::string role;  ///< system, user or assistant
  std::string content;

  bool operator==(const ChatMessage&) const = default;
};

struct EncodedChat {
  std::vector<int32_t> ids;
  /// Per id, whether it counts as a label: 1 for the assistant's turn from where a prompt ends to what ends it (a
  /// special token, or all that follows the content without one), 0 for the rest. An id counts when any of its
  /// characters does.
  std::vector<uint8_t> counts;
  /// Why the conversation cannot be written, as the end of a sentence about it; then there are no ids. Empty: it can.
  std::string problem = {};
};

struct ChatTemplateOptions {
  /// llama2, llama3, llama3_1, chatml, custom, or auto: that of the tokenizer's folder.
  std::string name = "auto";
  std::filesystem::path tokenizer = {};  ///< for auto: the tokenizer's folder, or a file in it

  /// Of "custom". Names of the tokenizer's special tokens in these texts stand for their ids.
  struct Role {
    std::string prefix, suffix;
  };
  std::string begin = {};
  Role system = {}, user = {}, assistant = {};

  bool all_count = false;  ///< every id counts as a label
};

/// The names that `ChatTemplateOptions::name` may have.
std::vector<std::string> chat_template_names();

class ChatTemplate {
 public:
  /// Throws Error(bad_config): auto and there is no template in the folder, or one that cannot be run here; a special
  /// token of a template that was named is none of the tokenizer's.
  ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer);
  ~ChatTemplate();

  /// A whole conversation. Text of a message that looks like a special token is ordinary text, except for tokens that a
  /// Hugging Face tokenizer adds without calling them special and a SentencePiece model's user-defined pieces.
  /// (`transformers` makes special tokens of it.)
  EncodedChat encode(const std::vector<ChatMessage>& messages) const;

  /// The conversation so far, up to where the assistant's next turn begins (add_generation_prompt).
  EncodedChat prompt(const std::vector<ChatMessage>& messages) const;

  /// Ids that end the assistant's turn: the special token after it, and the tokenizer's end-of-text id.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  /// Text that ends the assistant's turn where no special token does; else empty.
  const std::string& stop_text() const { return stop_text_; }

  /// The template's name, or the file that it is in.
  const std::string& name() const { return name_; }
  /// Its Jinja source.
  const std::string& source() const { return source_; }

 private:
  struct Form;

  std::string name_, source_;
  std::unique_ptr<Form> form_;
  std::vector<int32_t> stop_ids_;
  std::string stop_text_;
};

}  // namespace titan
