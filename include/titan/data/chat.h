// Conversations and the templates that write them as token ids: Llama 2, Llama 3, Llama 3.1 and ChatML built in, others
// as a prefix and a suffix per role. Ids are those of apply_chat_template(tokenize=True) of the package `transformers`.
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
  /// Per id, whether it counts as a label: 1 for the content of an assistant's turn and what ends it (a special token,
  /// or all of a suffix without one), 0 for the rest. An id counts when any of its characters does.
  std::vector<uint8_t> counts;
};

struct ChatTemplateOptions {
  /// llama2, llama3, llama3_1, chatml, custom, or auto: recognised in the tokenizer's folder.
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
  /// Throws Error(bad_config): auto and the folder's template writes some conversation unlike every built-in one; a
  /// special token of the template is none of the tokenizer's.
  ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer);
  ~ChatTemplate();

  /// Why a conversation to train on cannot be written with this template, or one that the assistant is to answer
  /// (`is_prompt`), as the end of a sentence about it; empty: it can.
  std::string problem(const std::vector<ChatMessage>& messages, bool is_prompt = false) const;

  /// A whole conversation. `problem` must be empty. Text of a message that looks like a special token is ordinary text,
  /// except for tokens that a Hugging Face tokenizer adds without calling them special and a SentencePiece model's
  /// user-defined pieces. (`transformers` makes special tokens of it.)
  EncodedChat encode(const std::vector<ChatMessage>& messages) const;

  /// The conversation so far, up to where the assistant's next turn begins (add_generation_prompt). `problem` of a
  /// prompt must be empty.
  std::vector<int32_t> prompt(const std::vector<ChatMessage>& messages) const;

  /// Ids that end the assistant's turn: the special token after it, and the tokenizer's end-of-text id.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  /// Text that ends the assistant's turn where no special token does (a custom suffix); else empty.
  const std::string& stop_text() const { return stop_text_; }

  /// Which template this is: never "auto".
  const std::string& name() const { return name_; }

 private:
  struct Form;
  struct Piece;

  void check_special_tokens() const;
  void find_stops();
  std::vector<Piece> pieces_of(const std::vector<ChatMessage>& messages, bool generate) const;
  void encode_text(const Piece* begin, const Piece* end, EncodedChat& chat) const;
  EncodedChat encode_pieces(const std::vector<Piece>& pieces) const;

  std::string name_;
  std::unique_ptr<const Form> form_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool all_count_;
  std::vector<int32_t> stop_ids_;
  std::string stop_text_;
};

}  // namespace titan
