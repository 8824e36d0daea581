#include "chat_control_tokens.h"

namespace titan {

std::set<std::string> control_names(std::string_view text) {
  std::set<std::string> names;
  for (size_t at = text.find("<|"); at != text.npos; at = text.find("<|", at + 1)) {
    const size_t end = text.find("|>", at + 2);
    if (end == text.npos) break;
    const std::string_view name = text.substr(at, end + 2 - at);
    if (name.find_first_of(" \n'\"{") == name.npos) names.emplace(name);
  }
  for (const char* name : {"<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "<bos>", "<eos>"}) {
    if (text.find(name) != text.npos) names.emplace(name);
  }
  return names;
}

std::vector<std::string> split_control_tokens(const std::vector<std::string_view>& written,
                                              const std::set<std::string>& known, const std::set<std::string>& held,
                                              bool ends_in_token) {
  std::set<std::string> found, split;
  for (const std::string_view text : written) {
    for (const std::string& name : control_names(text)) {
      if (!held.contains(name)) (known.contains(name) ? found : split).insert(name);
    }
  }
  if (found.empty() && ends_in_token) return {};
  return {split.begin(), split.end()};
}

}  // namespace titan
