// The control tokens of a chat template, such as <|im_end|>: a model learns nothing from a template whose control
// tokens the tokenizer splits into pieces. Knows text, not ids.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// The names of control tokens in the texts that a template writes around a conversation's messages. A token that may
/// be plain text is one that some published templates write for tokenizers without it: Zephyr's <|user|>.
struct ControlNames {
  std::set<std::string> always;      ///< <｜User｜>, <|turn>, <turn|>, <end_of_utterance>, [SYSTEM_PROMPT], …
  std::set<std::string> maybe_text;  ///< <|…|>, [|…|], <s>, <bos>, …
};
ControlNames control_names(const std::vector<std::string_view>& written);

/// The control tokens that a template has written into `written`, as a whole or in pieces ("<|" + role + "|>"), and
/// that are neither in `known` nor in `held`, the values of variables such as eos_token. Without those that may be
/// plain text for a template that writes all of them so and ends the assistant's turn (`ends_in_token`) with a special
/// token, as Zephyr's does.
std::vector<std::string> split_control_tokens(const std::vector<std::string_view>& written,
                                              const std::set<std::string>& known, const std::set<std::string>& held,
                                              bool ends_in_token);

}  // namespace titan
