// The control tokens of a chat template, such as <|im_end|>: a model learns nothing from a template whose control
// tokens the tokenizer splits into pieces. Knows text, not ids.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// Names of the form <|…|>, and a few other well-known ones, in `text`.
std::set<std::string> control_names(std::string_view text);

/// The control tokens that a template has written into `written`, as a whole or in pieces ("<|" + role + "|>"), and
/// that are neither in `known` nor in `held`, the values of variables such as eos_token. Empty for a template that
/// writes all of them as plain text and ends the assistant's turn (`ends_in_token`) with a special token, as Zephyr's
/// does.
std::vector<std::string> split_control_tokens(const std::vector<std::string_view>& written,
                                              const std::set<std::string>& known, const std::set<std::string>& held,
                                              bool ends_in_token);

}  // namespace titan
