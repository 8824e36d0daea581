#include "titan/text/tokenizer.h"

namespace titan {

void Tokenizer::encode_framed(std::string_view text, bool bos, bool eos, std::vector<int32_t>& ids) const {
  if (bos && bos_id() != kNoId) ids.push_back(bos_id());
  encode_append(text, ids);
  if (eos && eos_id() != kNoId) ids.push_back(eos_id());
}

void Tokenizer::encode_part(std::string_view text, bool, std::vector<int32_t>& ids) const { encode_append(text, ids); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool bos, bool eos) const {
  std::vector<int32_t> ids;
  encode_framed(text, bos, eos, ids);
  return ids;
}

std::string shown_id(int32_t id) { return id == Tokenizer::kNoId ? "none" : std::to_string(id); }

}  // namespace titan
