#include "chat_control_tokens.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace titan {
namespace {

constexpr std::string_view kWideBar = "｜";  // DeepSeek's and Hunyuan's, of three bytes
constexpr size_t kLongestName = 80;

struct Shape {
  std::string_view open, close;
};
constexpr std::array kMaybeText = {Shape{"<|", "|>"}, Shape{"[|", "|]"}};
constexpr std::array kAlwaysTokens = {Shape{"<｜", "｜>"}, Shape{"<|", ">"}, Shape{"<", "|>"}};

/// Tokens that open or close a text, in vocabularies of all kinds.
constexpr std::array kPlainEnds = {"<s>", "</s>", "<bos>", "<eos>"};
constexpr std::array kShortNames = {"sep", "sop", "eop", "eod", "eoh", "eoa", "eot", "eom"};
/// Of tekken and of GLM. Not INST: the vocabulary of Llama 2 has no token [INST], which its template writes.
constexpr std::array kSquareNames = {"THINK", "ARGS", "IMG", "gMASK", "sMASK", "CLS",
                                     "SEP",   "EOS",  "BOS", "PAD",   "MASK"};
/// Tags of what an answer holds. Published tokenizers split many of them, and a model learns them as text.
constexpr std::array kTagWords = {"think", "thought", "reason",  "answer", "response", "tool", "function",
                                  "code",  "example", "context", "doc",    "schema",   "name", "param"};

template <class List>
bool is_in_list(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_ascii_alphanumeric(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// The name of this shape at `at`, with its brackets; empty if there is none.
std::string_view enclosed(std::string_view text, size_t at, const Shape& shape) {
  const auto& [open, close] = shape;
  if (!text.substr(at).starts_with(open)) return {};
  const size_t begin = at + open.size();
  const size_t end = text.substr(0, begin + kLongestName).find(close, begin);
  if (end == text.npos || end == begin) return {};
  const std::string_view name = text.substr(begin, end - begin);
  const bool is_name = name.find_first_of(" \n\t'\"{}<>[]|") == name.npos && name.find(kWideBar) == name.npos;
  return is_name ? text.substr(at, end + close.size() - at) : std::string_view();
}

/// Whether nothing but other control tokens stands before `at` on its line, or after `end` in the text: a token in the
/// middle of a system prompt's sentence is mentioned, not used as a token.
bool is_at_edge(std::string_view text, size_t at, size_t end) {
  const std::string_view before = text.substr(0, at), after = text.substr(end);
  const size_t last = before.find_last_not_of(" \t"), next = after.find_first_not_of(" \t\n");
  return last == before.npos || next == after.npos ||
         std::string_view("\n>]").find(before[last]) != std::string_view::npos;
}

/// Whether a name of the form <name> or </name> is that of a token rather than of a tag of XML: it has an underscore or
/// a colon, like <end_of_turn>, and no word of kTagWords.
bool is_token_word(std::string_view name) {
  if (name.starts_with('/')) name.remove_prefix(1);
  if (is_in_list(kShortNames, name)) return true;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return is_ascii_alphanumeric(c) || c == '_' || c == ':'; })) {
    return false;
  }
  if (name.find_first_of("_:") == name.npos) return false;
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  return std::none_of(kTagWords.begin(), kTagWords.end(),
                      [&](const char* word) { return lower.find(word) != std::string::npos; });
}

/// Whether `written` also has the other half of a pair of tags, <name> and </name>.
bool is_paired(const std::vector<std::string_view>& written, std::string_view token) {
  const bool closes = token.starts_with("</");
  const std::string other = (closes ? "<" : "</") + std::string(token.substr(closes ? 2 : 1));
  return std::any_of(written.begin(), written.end(),
                     [&](std::string_view text) { return text.find(other) != text.npos; });
}

bool is_square_token(std::string_view name) {
  if (name.starts_with('/')) name.remove_prefix(1);
  if (is_in_list(kSquareNames, name)) return true;
  return name.find('_') != name.npos &&
         std::all_of(name.begin(), name.end(), [](char c) { return c == '_' || (c >= 'A' && c <= 'Z'); });
}

/// Adds the control token that begins at `at`, if there is one.
void add_name_at(std::string_view text, size_t at, const std::vector<std::string_view>& written, ControlNames& names) {
  for (const Shape& shape : kMaybeText) {
    const std::string_view token = enclosed(text, at, shape);
    if (!token.empty()) return void(names.maybe_text.emplace(token));
  }
  for (const Shape& shape : kAlwaysTokens) {
    const std::string_view token = enclosed(text, at, shape);
    if (!token.empty()) return void(names.always.emplace(token));
  }
  const bool is_square = text[at] == '[';
  const std::string_view token = enclosed(text, at, is_square ? Shape{"[", "]"} : Shape{"<", ">"});
  if (token.empty()) return;
  if (is_in_list(kPlainEnds, token)) return void(names.maybe_text.emplace(token));
  const std::string_view name = token.substr(1, token.size() - 2);
  const bool is_token = is_square ? is_square_token(name) : is_token_word(name) && !is_paired(written, token);
  if (is_token && is_at_edge(text, at, at + token.size())) names.always.emplace(token);
}

}  // namespace

ControlNames control_names(const std::vector<std::string_view>& written) {
  ControlNames names;
  for (const std::string_view text : written) {
    for (size_t at = text.find_first_of("<["); at != text.npos; at = text.find_first_of("<[", at + 1)) {
      add_name_at(text, at, written, names);
    }
  }
  return names;
}

std::vector<std::string> split_control_tokens(const std::vector<std::string_view>& written,
                                              const std::set<std::string>& known, const std::set<std::string>& held,
                                              bool ends_in_token) {
  const ControlNames names = control_names(written);
  std::set<std::string> split, as_text;
  bool is_any_known = false;
  const auto sort = [&](const std::set<std::string>& of, std::set<std::string>& unknown) {
    for (const std::string& name : of) {
      if (held.contains(name)) continue;
      known.contains(name) ? void(is_any_known = true) : void(unknown.insert(name));
    }
  };
  sort(names.always, split);
  sort(names.maybe_text, as_text);
  if (is_any_known || !split.empty() || !ends_in_token) split.merge(as_text);
  return {split.begin(), split.end()};
}

}  // namespace titan
