// A random permutation of 0 … size−1 in constant memory: element `index` in epoch `epoch` is a pure function of (seed,
// epoch, index). A Feistel network on the next even number of bits, with cycle walking: it is applied again until the
// result is below `size` (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "titan/corpus/document_source.h"

namespace titan {

class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t epoch, uint64_t size);

  uint64_t size() const { return size_; }

  /// A bijection on [0, size).
  uint64_t operator()(uint64_t index) const {
    do index = mix(index);
    while (index >= size_);
    return index;
  }

 private:
  // Four rounds with random functions make a Feistel network a pseudorandom permutation (Luby and Rackoff, 1988); two
  // more are for halves of few bits, those of small corpora. Saved positions depend on it.
  static constexpr int kRounds = 6;

  uint64_t mix(uint64_t value) const;

  uint64_t size_;
  int half_ = 1;  // bits of each half
  std::array<uint64_t, kRounds> keys_{};
};

/// The random order of the documents of a pass, a pure function of (seed, pass, place). If they come in blocks
/// (DocumentSource::blocks), the blocks are in random order and each two that follow each other are mixed: any two
/// documents of at most two blocks may be neighbours, and no more than two blocks are held.
class PassOrder {
 public:
  PassOrder(uint64_t seed, int64_t documents, const std::vector<int64_t>& blocks);

  bool has_blocks() const { return !begins_.empty(); }
  void begin(int64_t pass);
  /// Index of the document at `place` of the pass.
  int64_t operator()(int64_t place) const;

 private:
  /// Two blocks, or the last one, and where they begin in the pass.
  struct Window {
    int64_t begin = 0;
    size_t one = 0, other = 0;  // blocks; the same: it is alone
    Permutation order;
  };

  int64_t rows(size_t block) const { return begins_[block + 1] - begins_[block]; }

  uint64_t seed_;
  Permutation order_;            // without blocks
  std::vector<int64_t> begins_;  // of the blocks in the corpus, and the end; empty: no blocks
  std::vector<Window> windows_;
};

// Sources that return another source's documents in another order, or a subset of them.

/// Forwards the inner source's counters and notices, and its words with what the source around it adds.
class SourceAround : public DocumentSource {
 public:
  explicit SourceAround(std::unique_ptr<DocumentSource> inner) : inner_(std::move(inner)) {}

  std::string description() const override { return inner_->description() + ", " + added_.description; }
  std::string order() const override { return inner_->order() + ", " + added_.order; }
  uint64_t fingerprint() const override;
  std::string place_of(const SourcePosition& start) const override { return inner_->place_of(start); }
  std::string reading() const override { return inner_->reading(); }
  void check_tokenizer(const Tokenizer& tokenizer) const override { inner_->check_tokenizer(tokenizer); }
  CorpusFiles file_sizes() const override { return inner_->file_sizes(); }
  std::string format() const override { return inner_->format(); }

 protected:
  /// What distinguishes this source from the inner one; set by constructors.
  struct Addition {
    std::string description, order;
    std::string identity;  ///< part of the fingerprint: saved positions depend on it
  };

  /// Copies the inner source's counters and notices; call after every use of it.
  void take_over();

  std::unique_ptr<DocumentSource> inner_;
  Addition added_;
};

/// A new order in every pass. The position is one integer: pass · documents + index in the pass.
class ShuffledSource : public SourceAround {
 public:
  /// Throws Error(bad_data) if the documents have no random access.
  ShuffledSource(std::unique_ptr<DocumentSource> inner, uint64_t seed);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;
  void begin_pass(int64_t epoch) override;
  std::string place_of(const SourcePosition&) const override { return description(); }  // it does not say the file

 private:
  int64_t documents_;
  int64_t next_ = 0, pass_end_ = 0;
  PassOrder order_;  // of the pass of next_
};

/// One rank's part of a streamed dataset in torchtitan's split, for files that do not divide evenly: records rank, rank
/// + ranks, rank + 2 · ranks, …
class StridedSource : public SourceAround {
 public:
  StridedSource(std::unique_ptr<DocumentSource> inner, int64_t ranks, int64_t rank);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override { inner_->seek(start); }

 private:
  int64_t ranks_, rank_;
};

/// One rank's part of an in-memory dataset in torchtitan's split: consecutive documents; each of the first (documents
/// mod ranks) ranks has one more than the others.
class BlockSource : public SourceAround {
 public:
  /// Throws Error(bad_data) if the documents have no random access, or are fewer than the ranks.
  BlockSource(std::unique_ptr<DocumentSource> inner, int64_t ranks, int64_t rank);

  bool next(Document& document) override;
  void seek(const SourcePosition& start) override;

 private:
  int64_t begin_ = 0, end_ = 0, next_ = 0;
};

}  // namespace titan
