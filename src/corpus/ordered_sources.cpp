#include "ordered_sources.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Number of documents in a pass; `why` says in the error why random access is required.
int64_t count(DocumentSource& source, const std::string& why) {
  const std::optional<int64_t> documents = source.count_documents();
  if (!documents) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: {} reads documents in any order, and packed files can be read from their "
                            "beginning only. Unpack them, or make a .bin file with: titan_train data tokenize.",
                            source.description(), why));
  }
  if (*documents == 0) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: there is no document in it; give one with text", source.description()));
  }
  return *documents;
}

}  // namespace

uint64_t SourceAround::fingerprint() const { return inner_->fingerprint() ^ name_key(added_.identity); }

void SourceAround::take_over() {
  counters_ = inner_->counters();
  for (std::string& text : inner_->take_notices()) notice(std::move(text));
}

ShuffledSource::ShuffledSource(std::unique_ptr<DocumentSource> inner, uint64_t seed)
    : SourceAround(std::move(inner)),
      documents_(count(*inner_, "data.shuffle")),
      order_(seed, documents_, inner_->blocks()) {
  added_ = {fmt::format("{} documents shuffled with seed {}", with_thousands(documents_), seed),
            fmt::format("shuffled {}with seed {}", order_.has_blocks() ? "by row groups " : "", seed),
            fmt::format("shuffled {} {}", seed, documents_)};
  take_over();
  seek({});
}

bool ShuffledSource::next(Document& document) {
  while (next_ < pass_end_) {
    const int64_t place = next_++;
    const bool read = inner_->read(order_(place % documents_), document);
    take_over();
    if (!read) continue;
    document.start = {};
    document.start.document = place;
    return true;
  }
  return false;
}

void ShuffledSource::seek(const SourcePosition& start) {
  next_ = start.document;
  const int64_t pass = next_ / documents_;
  pass_end_ = (pass + 1) * documents_;
  order_.begin(pass);
}

void ShuffledSource::begin_pass(int64_t epoch) {
  SourcePosition start;
  start.document = epoch * documents_;
  seek(start);
}

StridedSource::StridedSource(std::unique_ptr<DocumentSource> inner, int64_t ranks, int64_t rank)
    : SourceAround(std::move(inner)), ranks_(ranks), rank_(rank) {
  added_.description = added_.order = fmt::format("every {}th record from the {}th", ranks, rank);
  added_.identity = fmt::format("strided {} {}", ranks, rank);
}

bool StridedSource::next(Document& document) {
  bool found = false;
  while (!found && inner_->next(document)) found = document.start.document % ranks_ == rank_;
  take_over();
  return found;
}

BlockSource::BlockSource(std::unique_ptr<DocumentSource> inner, int64_t ranks, int64_t rank)
    : SourceAround(std::move(inner)) {
  const int64_t documents = count(*inner_, "data.split = \"upstream\" of this dataset");
  const int64_t share = documents / ranks, more = documents % ranks;
  begin_ = next_ = rank * share + std::min(rank, more);
  end_ = begin_ + share + (rank < more ? 1 : 0);
  if (begin_ == end_) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: {} documents are too few for {} data-parallel ranks with data.split = "
                            "\"upstream\". Give more text, or leave data.split at \"global\".",
                            inner_->description(), documents, ranks));
  }
  added_ = {fmt::format("documents {} to {}", begin_, end_ - 1), fmt::format("block {} of {}", rank, ranks),
            fmt::format("block {} {}", begin_, end_)};
  take_over();
}

bool BlockSource::next(Document& document) {
  bool found = false;
  while (!found && next_ < end_) found = inner_->read(next_++, document);
  take_over();
  return found;
}

void BlockSource::seek(const SourcePosition& start) { next_ = std::max(begin_, start.document); }

PassOrder::PassOrder(uint64_t seed, int64_t documents, const std::vector<int64_t>& blocks)
    : seed_(seed), order_(seed, 0, static_cast<uint64_t>(documents)) {
  if (blocks.empty()) return;
  begins_.push_back(0);
  for (const int64_t rows : blocks) begins_.push_back(begins_.back() + rows);
  TITAN_CHECK(begins_.back() == documents, begins_.back(), documents);
}

void PassOrder::begin(int64_t pass) {
  const auto epoch = static_cast<uint64_t>(pass);
  if (!has_blocks()) {
    order_ = Permutation(seed_, epoch, order_.size());
    return;
  }
  const size_t blocks = begins_.size() - 1;
  const Permutation of_blocks(seed_, epoch, blocks);
  windows_.clear();
  int64_t begin = 0;
  for (size_t i = 0; i < blocks; i += 2) {
    const size_t one = of_blocks(i), other = i + 1 < blocks ? of_blocks(i + 1) : one;
    const int64_t size = rows(one) + (other != one ? rows(other) : 0);
    const uint64_t key = seed_ ^ name_key(fmt::format("blocks {}", i));
    windows_.push_back({begin, one, other, Permutation(key, epoch, static_cast<uint64_t>(size))});
    begin += size;
  }
}

int64_t PassOrder::operator()(int64_t place) const {
  if (!has_blocks()) return static_cast<int64_t>(order_(static_cast<uint64_t>(place)));
  const auto after = std::upper_bound(windows_.begin(), windows_.end(), place,
                                      [](int64_t wanted, const Window& window) { return wanted < window.begin; });
  const Window& window = *std::prev(after);
  const auto inside = static_cast<int64_t>(window.order(static_cast<uint64_t>(place - window.begin)));
  return inside < rows(window.one) ? begins_[window.one] + inside : begins_[window.other] + inside - rows(window.one);
}

Permutation::Permutation(uint64_t seed, uint64_t epoch, uint64_t size) : size_(size) {
  TITAN_CHECK(size > 0 && size <= uint64_t{1} << 62, size);
  half_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t key = seed ^ name_key("order of documents");
  for (size_t round = 0; round < keys_.size(); ++round) {
    const PhiloxBlock block = philox_at(key, epoch, round);
    keys_[round] = uint64_t{block[0]} << 32 | block[1];
  }
}

uint64_t Permutation::mix(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_) - 1;
  uint64_t left = value >> half_, right = value & mask;
  for (const uint64_t key : keys_) {
    uint64_t hash = (right + key) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    const uint64_t next = (left ^ hash >> 24) & mask;
    left = right;
    right = next;
  }
  return left << half_ | right;
}

}  // namespace titan
