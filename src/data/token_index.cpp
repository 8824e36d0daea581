#include "token_index.h"

#include <fmt/format.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "file_reader.h"
#include "output_file.h"
#include "titan/data/token_file.h"

namespace titan {

void write_token_index(const std::filesystem::path& bin, const TokenFileFacts& facts,
                       const std::vector<uint64_t>& block_hashes, const std::filesystem::path& ends) {
  TokenIndexHeader header{};
  std::memcpy(header.magic, TokenIndexHeader::kMagic, sizeof header.magic);
  header.version = TokenIndexHeader::kVersion;
  header.token_bytes = static_cast<uint32_t>(facts.token_bytes);
  header.vocabulary = static_cast<uint64_t>(facts.vocabulary);
  header.vocabulary_fingerprint = facts.vocabulary_fingerprint;
  header.bos = facts.bos;
  header.eos = facts.eos;
  header.documents = static_cast<uint64_t>(facts.documents);
  header.tokens = static_cast<uint64_t>(facts.tokens);
  header.block_bytes = kTokenBlock;
  std::memcpy(header.tokenizer, facts.tokenizer.data(), std::min(facts.tokenizer.size(), sizeof header.tokenizer - 1));

  const std::filesystem::path part = index_path(bin).string() + ".part";
  {
    OutputFile out(part, 0);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    auto put = [&](const void* data, size_t size) {
      out.write(data, size);
      XXH3_64bits_update(&state, data, size);
    };
    put(&header, sizeof header);
    put(block_hashes.data(), block_hashes.size() * sizeof(uint64_t));
    FileReader in(ends);
    std::vector<char> piece(size_t{1} << 20);
    for (size_t got; (got = in.read(piece.data(), piece.size())) > 0;) put(piece.data(), got);
    const uint64_t checksum = XXH3_64bits_digest(&state);
    out.write(&checksum, sizeof checksum);
    out.sync();
  }
  rename_durably(part, index_path(bin));
}

}  // namespace titan
