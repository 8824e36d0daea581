#include "titan/corpus/token_file.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "file_reader.h"
#include "foreign_ids.h"
#include "mapped_file.h"
#include "output_file.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"

namespace titan {
namespace {

const std::string kMakeAgain = "Make it again with: titan_train data tokenize";

}  // namespace

std::filesystem::path index_path(const std::filesystem::path& bin) { return bin.string() + ".idx"; }

TokenFileFacts facts_of(const Tokenizer& tokenizer) {
  TokenFileFacts facts;
  facts.vocabulary = tokenizer.vocabulary_size();
  facts.token_bytes = facts.vocabulary <= 65536 ? 2 : 4;
  facts.vocabulary_fingerprint = tokenizer.fingerprint();
  facts.bos = tokenizer.bos_id();
  facts.eos = tokenizer.eos_id();
  facts.tokenizer = tokenizer.description();
  return facts;
}

TokenFile::TokenFile(const std::filesystem::path& bin) : IdFile(bin) {
  ids_ = std::make_unique<MappedFile>(bin);
  std::error_code unknown;
  if (!std::filesystem::exists(index_path(bin), unknown)) refuse_unknown_ids(bin);
  index_ = std::make_unique<MappedFile>(index_path(bin));
  watch_ = std::make_unique<ChangeWatch>();
  read_index();
  check_ends();
  checked_.resize(blocks_of(ids_->size(), kTokenBlock));
}

TokenFile::~TokenFile() = default;

void TokenFile::fail(const std::string& what, const std::string& remedy) const { fail_ids(path_, what, remedy); }

void TokenFile::read_index() {
  const std::string name = index_path(path_).filename().string();
  TokenIndexHeader header{};
  const size_t size = index_->size();
  if (size < sizeof header + sizeof(uint64_t)) fail(fmt::format("its index {} is cut off", name), kMakeAgain);
  std::memcpy(&header, index_->bytes(), sizeof header);
  if (std::memcmp(header.magic, TokenIndexHeader::kMagic, sizeof header.magic) != 0) {
    refuse_kind(file_kind_at(index_path(path_)), index_path(path_), ExitCode::bad_data);
    fail(fmt::format("its index {} is not an index of this program", name), kMakeAgain);
  }
  if (header.version != TokenIndexHeader::kVersion) {
    fail(fmt::format("its index has version {}, and this program reads version {}", header.version,
                     TokenIndexHeader::kVersion),
         kMakeAgain);
  }
  const size_t body = size - sizeof(uint64_t);
  uint64_t checksum = 0;
  std::memcpy(&checksum, index_->bytes() + body, sizeof checksum);
  if (XXH3_64bits(index_->bytes(), body) != checksum) {
    fail(fmt::format("its index {} is damaged or cut off: its checksum is wrong", name), kMakeAgain);
  }
  // The checksum matches, so errors found from here on were made by the writer.
  const bool sound = (header.token_bytes == 2 || header.token_bytes == 4) && header.block_bytes == kTokenBlock &&
                     header.tokens <= (uint64_t{1} << 60) && header.documents <= header.tokens + 1 &&
                     header.vocabulary <= (uint64_t{1} << 31);
  const uint64_t blocks = sound ? blocks_of(header.tokens * header.token_bytes, kTokenBlock) : 0;
  if (!sound || body != sizeof header + (blocks + header.documents) * sizeof(uint64_t)) {
    fail(fmt::format("its index {} contradicts itself", name), kMakeAgain);
  }
  facts_.token_bytes = header.token_bytes;
  facts_.vocabulary = static_cast<int64_t>(header.vocabulary);
  facts_.vocabulary_fingerprint = header.vocabulary_fingerprint;
  facts_.bos = header.bos;
  facts_.eos = header.eos;
  facts_.documents = static_cast<int64_t>(header.documents);
  facts_.tokens = static_cast<int64_t>(header.tokens);
  facts_.tokenizer.assign(header.tokenizer, ::strnlen(header.tokenizer, sizeof header.tokenizer));
  block_hashes_ = reinterpret_cast<const uint64_t*>(index_->bytes() + sizeof header);
  ends_ = block_hashes_ + blocks;
}

void TokenFile::check_ends() const {
  const auto bytes = static_cast<size_t>(facts_.tokens * facts_.token_bytes);
  if (ids_->size() != bytes) {
    fail(fmt::format("it has {} bytes, and its index says {}", with_thousands(static_cast<int64_t>(ids_->size())),
                     with_thousands(static_cast<int64_t>(bytes))),
         "Get the whole file again, or make it again with: titan_train data tokenize");
  }
  const bool ascending = std::is_sorted(ends_, ends_ + facts_.documents);
  const uint64_t last = facts_.documents > 0 ? ends_[facts_.documents - 1] : 0;
  if (!ascending || last != static_cast<uint64_t>(facts_.tokens)) fail("its index contradicts itself", kMakeAgain);
}

TokenView TokenFile::document(int64_t index) {
  TITAN_CHECK(index >= 0 && index < facts_.documents, index, facts_.documents);
  const auto begin = index == 0 ? 0 : static_cast<int64_t>(ends_[index - 1]);
  const auto end = static_cast<int64_t>(ends_[index]);
  check_blocks(begin * facts_.token_bytes, end * facts_.token_bytes);
  return {ids_->bytes() + begin * facts_.token_bytes, static_cast<size_t>(end - begin), type(), facts_.vocabulary,
          &path_};
}

void TokenFile::check_blocks(int64_t begin, int64_t end) {
  watch_->check(path_, *ids_, index_.get());
  const auto size = static_cast<int64_t>(ids_->size());
  for (int64_t at = begin / kTokenBlock * kTokenBlock; at < end; at += kTokenBlock) {
    const int64_t block = at / kTokenBlock;
    if (checked_[static_cast<size_t>(block)]) continue;
    const int64_t length = std::min(kTokenBlock, size - at);
    if (XXH3_64bits(ids_->bytes() + at, static_cast<size_t>(length)) != block_hashes_[block]) {
      fail(fmt::format("its bytes {} to {} are damaged: their checksum is wrong", with_thousands(at),
                       with_thousands(at + length)),
           "Get the file again, or make it again with: titan_train data tokenize");
    }
    checked_[static_cast<size_t>(block)] = true;
  }
}

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
