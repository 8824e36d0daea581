#include "titan/data/tiktoken_tokenizer.h"

#include <fmt/format.h>

#include <array>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/data/piece_cache.h"
#include "titan/data/utf8.h"

namespace titan {

struct TiktokenTokenizer::Scratch {
  explicit Scratch(const Llama3Splitter& splitter) : regex(splitter) {}
  Llama3Splitter::Scratch regex;
  PieceCache cache;
  std::string repaired;
};

/// Borrows an idle Scratch, or makes one, and returns it when done: as many exist as threads ever encoded at once.
class TiktokenTokenizer::Lease {
 public:
  explicit Lease(const TiktokenTokenizer& owner) : owner_(owner) {
    std::lock_guard lock(owner.mutex_);
    if (!owner.idle_.empty()) {
      scratch_ = std::move(owner.idle_.back());
      owner.idle_.pop_back();
    }
    if (!scratch_) scratch_ = std::make_unique<Scratch>(owner.splitter_);
  }
  ~Lease() {
    std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  const TiktokenTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

TiktokenTokenizer::TiktokenTokenizer(std::vector<std::string> tokens) : encoder_(std::move(tokens)) {
  std::string all = name();
  for (const std::string& token : encoder_.tokens()) all += fmt::format("\n{} {}", token.size(), token);
  fingerprint_ = name_key(all);
}

TiktokenTokenizer::~TiktokenTokenizer() = default;

void TiktokenTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  Lease lease(*this);
  Scratch& scratch = *lease;
  SegmentCutter cutter(valid_utf8(text, scratch.repaired));
  for (std::string_view segment; cutter.next(segment);) encode_segment(segment, scratch, ids);
}

void TiktokenTokenizer::encode_segment(std::string_view segment, Scratch& scratch, std::vector<int32_t>& ids) const {
  // Ids gather here first: known pieces are copied with a fixed size, which is much faster than growing a vector by
  // one.
  std::array<int32_t, 1024> ready;
  size_t count = 0;
  auto flush = [&] {
    ids.insert(ids.end(), ready.begin(), ready.begin() + count);
    count = 0;
  };
  for (size_t begin = 0, end; begin < segment.size(); begin = end) {
    end = splitter_.piece_end(segment, begin, scratch.regex);
    bool short_piece = end - begin <= PieceCache::kMostBytes;
    PieceCache::Key key{};
    if (short_piece) {
      key = PieceCache::key_of(segment, begin, end);
      if (size_t known = scratch.cache.find(key, &ready[count]); known > 0) {
        count += known;
        if (count + PieceCache::kMostIds > ready.size()) flush();
        continue;
      }
    }
    flush();
    size_t before = ids.size();
    encoder_.encode_piece(segment.substr(begin, end - begin), ids);
    if (short_piece) scratch.cache.keep(key, std::span(ids).subspan(before));
  }
  flush();
}

std::string TiktokenTokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("token id {} is not in this tokenizer: its ids are 0 to {}", id, vocabulary_size() - 1));
    }
    bytes += id < encoder_.size() ? encoder_.token(id) : special_name(id - encoder_.size());
  }
  return bytes;
}

std::string TiktokenTokenizer::description() const {
  return fmt::format("TikTokenizer built: #words {}, BOS ID {}, EOS ID {}", vocabulary_size(), bos_id(), eos_id());
}

std::string TiktokenTokenizer::special_name(int32_t index) {
  TITAN_CHECK(index >= 0 && index < kSpecialTokens, index);
  switch (index) {
    case 0:
      return "<|begin_of_text|>";
    case 1:
      return "<|end_of_text|>";
    case 6:
      return "<|start_header_id|>";
    case 7:
      return "<|end_header_id|>";
    case 9:
      return "<|eot_id|>";
    default:
      break;
  }
  int32_t reserved = index < 6 ? index - 2 : index == 8 ? 4 : index - 5;
  return fmt::format("<|reserved_special_token_{}|>", reserved);
}

}  // namespace titan
