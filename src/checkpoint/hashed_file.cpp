#include "titan/checkpoint/hashed_file.h"

#include <cerrno>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // hashed, then written, while it is in the cache
constexpr size_t kSmall = kPiece / 16;      // collected before it is hashed and written
constexpr size_t kCachedBlocks = 3;
/// Of what is read as one text: indices, pickles, directories of archives.
constexpr int64_t kMostReadAtOnce = int64_t{1} << 32;

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string xxh3_128(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

FileRecord record_of(std::string_view bytes) {
  FileRecord record{static_cast<int64_t>(bytes.size()), {}};
  for (size_t begin = 0; begin < bytes.size(); begin += kHashBlock) {
    record.hashes.push_back(xxh3_128(bytes.substr(begin, kHashBlock)));
  }
  return record;
}

struct HashingWriter::Hash {
  XXH3_state_t state;
};

void HashingWriter::HashDeleter::operator()(Hash* hash) const { delete hash; }

HashingWriter::HashingWriter(Storage& storage, const std::filesystem::path& file)
    : file_(storage.create(file)), hash_(new Hash) {
  XXH3_128bits_reset(&hash_->state);
  buffer_.reserve(kPiece);
}

void HashingWriter::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kPiece || bytes.size() > kSmall) {
    pass_on(buffer_);
    buffer_.clear();
  }
  if (bytes.size() <= kSmall) {
    buffer_ += bytes;
  } else {
    for (size_t begin = 0; begin < bytes.size(); begin += kPiece) pass_on(bytes.substr(begin, kPiece));
  }
  position_ += static_cast<int64_t>(bytes.size());
}

void HashingWriter::pass_on(std::string_view bytes) {
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string_view part = rest.substr(0, static_cast<size_t>(kHashBlock - in_block_));
    XXH3_128bits_update(&hash_->state, part.data(), part.size());
    in_block_ += static_cast<int64_t>(part.size());
    if (in_block_ == kHashBlock) close_block();
    rest.remove_prefix(part.size());
  }
  file_->write(bytes);
}

void HashingWriter::close_block() {
  record_.hashes.push_back(hex(XXH3_128bits_digest(&hash_->state)));
  XXH3_128bits_reset(&hash_->state);
  in_block_ = 0;
}

FileRecord HashingWriter::finish() {
  pass_on(buffer_);
  buffer_.clear();
  if (in_block_ > 0) close_block();
  record_.bytes = position_;
  file_->sync();
  file_.reset();
  return record_;
}

CheckedReader::CheckedReader(Storage& storage, const std::filesystem::path& file, std::optional<FileRecord> record)
    : path_(file), record_(std::move(record)) {
  try {
    file_ = storage.open(file);
  } catch (const StorageError& error) {
    if (error.reason() == ENOENT) throw DamageError(fmt::format("{} is missing", path_.string()));
    throw;
  }
  size_ = file_->size();
  if (!record_) return;
  if (size_ != record_->bytes) {
    throw DamageError(fmt::format("{} has {} bytes instead of {}", path_.string(), size_, record_->bytes));
  }
  checked_.resize(record_->hashes.size());
}

int64_t CheckedReader::block_bytes(int64_t index) const { return std::min(kHashBlock, size_ - index * kHashBlock); }

void CheckedReader::check(int64_t index, std::string_view bytes) {
  if (!record_) return;
  const auto place = static_cast<size_t>(index);
  if (xxh3_128(bytes) != record_->hashes[place]) {
    throw DamageError(fmt::format("the bytes of {} from {} on are not those that were saved (their XXH3-128 differs)",
                                  path_.string(), index * kHashBlock));
  }
  checked_[place] = true;
}

const CheckedReader::Block& CheckedReader::cached(int64_t index) {
  for (const Block& block : cache_) {
    if (block.index == index) return block;
  }
  Block block;
  if (cache_.size() == kCachedBlocks) {
    block = std::move(cache_.back());
    cache_.pop_back();
  }
  block.index = index;
  block.bytes.resize(static_cast<size_t>(block_bytes(index)));
  file_->read(index * kHashBlock, block.bytes);
  check(index, block.bytes);
  cache_.push_front(std::move(block));
  return cache_.front();
}

void CheckedReader::read(int64_t offset, std::span<char> into) {
  const auto count = static_cast<int64_t>(into.size());
  if (offset < 0 || count > size_ || offset > size_ - count) {
    throw DamageError(
        fmt::format("{} has {} bytes, and bytes up to {} are asked for", path_.string(), size_, offset + count));
  }
  while (!into.empty()) {
    const int64_t index = offset / kHashBlock;
    const int64_t inside = offset - index * kHashBlock;
    const auto part = std::min(into.size(), static_cast<size_t>(block_bytes(index) - inside));
    if (!record_ && part > kPiece) {
      file_->read(offset, into.first(part));
    } else if (static_cast<int64_t>(part) == block_bytes(index)) {  // a whole block needs no copy of it
      file_->read(offset, into.first(part));
      check(index, {into.data(), part});
    } else {
      std::memcpy(into.data(), cached(index).bytes.data() + inside, part);
    }
    offset += static_cast<int64_t>(part);
    into = into.subspan(part);
  }
}

std::string CheckedReader::read(int64_t offset, int64_t count) {
  if (count < 0 || count > size_) throw DamageError(fmt::format("{} is too short", path_.string()));
  if (count > kMostReadAtOnce) {
    throw DamageError(fmt::format("{} has {} bytes where a few are expected", path_.string(), count));
  }
  std::string bytes(static_cast<size_t>(count), '\0');
  read(offset, bytes);
  return bytes;
}

void CheckedReader::check_all() {
  for (size_t index = 0; index < checked_.size(); ++index) {
    if (!checked_[index]) cached(static_cast<int64_t>(index));
  }
}

}  // namespace titan
