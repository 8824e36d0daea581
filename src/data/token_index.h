// The fixed part of the index of a .bin file. Private to data.
#pragma once

#include <cstdint>

namespace titan {

struct TokenIndexHeader {
  static constexpr char kMagic[9] = "TITANIDX";
  static constexpr uint32_t kVersion = 1;

  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocabulary;
  uint64_t vocabulary_fingerprint;
  int32_t bos, eos;
  uint64_t documents;
  uint64_t tokens;
  uint64_t block_bytes;
  char tokenizer[128];
};
static_assert(sizeof(TokenIndexHeader) == 192);

inline uint64_t blocks_of(uint64_t bytes, uint64_t block) { return (bytes + block - 1) / block; }

}  // namespace titan
