#include "titan/data/recorded_vocabulary.h"

#include <fmt/format.h>

#include <limits>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {
RecordedVocabulary::RecordedVocabulary(int64_t size, int32_t bos, int32_t eos, const std::string& maker) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (size < 1 || size > kMost) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("a vocabulary of {} ids {}: give the number of the tokenizer's ids with --vocab-size",
                    with_thousands(size),
                    size < 1 ? "is none" : fmt::format("is too large, ids go up to {}", with_thousands(kMost))));
  }
  for (auto [option, id] : {std::pair("--bos", bos), std::pair("--eos", eos)}) {
    if (id == kNoId || (id >= 0 && id < size)) continue;
    throw Error(ExitCode::bad_config, fmt::format("{} {} is no id of a vocabulary of {}: its ids are 0 to {}. Correct "
                                                  "it, or leave it out for a tokenizer without one",
                                                  option, id, size, size - 1));
  }
  facts_.vocabulary = size;
  facts_.bos = bos;
  facts_.eos = eos;
  facts_.tokenizer = fmt::format("Ids made elsewhere{}: #words {}, BOS ID {}, EOS ID {}",
                                 maker.empty() ? "" : " (" + maker + ")", size, shown_id(bos), shown_id(eos));
  facts_.vocabulary_fingerprint = name_key(fmt::format("ids\n{}\n{}\n{}\n{}", size, bos, eos, maker));
}

void RecordedVocabulary::encode_append(std::string_view, std::vector<int32_t>&) const {
  throw Error(ExitCode::bad_data,
              fmt::format("text cannot be encoded with the vocabulary of a .bin file ({}), which knows the ids but not "
                          "how text becomes them. Name the tokenizer itself, or give ids.",
                          facts_.tokenizer));
}

std::string RecordedVocabulary::decode(std::span<const int32_t> ids) const {
  for (int32_t id : ids) {
    if (id >= 0 && id < facts_.vocabulary) continue;
    throw Error(ExitCode::bad_data,
                fmt::format("token id {} is not in this vocabulary: its ids are 0 to {}", id, facts_.vocabulary - 1));
  }
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace titan
