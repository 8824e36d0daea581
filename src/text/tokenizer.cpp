#include "titan/text/tokenizer.h"

namespace titan {

void Tokenizer::encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const {
  if (bos && bos_id() != kNoId) ids.push_back(bos_id());
  encode_append(text, ids);
  if (eos && eos_id() != kNoId) ids.push_back(eos_id());
}

void Tokenizer::encode_part(std::string_view text, bool, std::vector<int32_t>& ids) const { encode_append(text, ids); }

std::vector<std::pair<std::string, std::string>> Tokenizer::named_tokens() const {
  std::vector<std::pair<std::string, std::string>> named;
  if (bos_id() != kNoId) named.emplace_back("bos_token", token_name(bos_id()));
  if (eos_id() != kNoId) named.emplace_back("eos_token", token_name(eos_id()));
  return named;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool bos, bool eos) const {
  std::vector<int32_t> ids;
  encode_framed(text, bos, eos, ids);
  return ids;
}

std::string shown_id(int32_t id) { return id == Tokenizer::kNoId ? "none" : std::to_string(id); }

}  // namespace titan
