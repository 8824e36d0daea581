// `titan_train tokenizer encode|decode|info`, without command-line parsing. The caller passes the streams; errors are
// titan::Error with the remedy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>

#include "titan/text/tokenizer.h"

namespace titan {

/// Bytes of the longest text that encode and decode take: it and its ids are held as a whole. Encoding a corpus is what
/// `data tokenize` is for.
inline constexpr size_t kLongestText = size_t{256} << 20;
/// Throws Error(bad_data) with that way out.
[[noreturn]] void refuse_long_text();

struct TokenizerEncoding {
  bool bos = false;
  bool eos = false;
  int64_t measure = 0;  ///< > 0: encode this many times and print the speed of each run instead of the ids
};

/// Prints the ids of all text in `in` on one line, separated by spaces; with `measure`, lines "TOKENS tokens  SECONDS s
/// RATE MB/s".
void encode_stream(const Tokenizer& tokenizer, const TokenizerEncoding& encoding, std::istream& in, std::ostream& out);

/// Writes the decoded bytes of the ids in `in`.
void decode_stream(const Tokenizer& tokenizer, std::istream& in, std::ostream& out);

/// Prints a description of the tokenizer: kind, number of ids, special tokens, longest tokens.
void describe_tokenizer(const Tokenizer& tokenizer, std::ostream& out);

}  // namespace titan
