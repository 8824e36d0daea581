// SentencePiece's unigram model: of all ways to cut a text into pieces the one with the highest sum of scores, found by
// Viterbi's algorithm. The package sums in single precision from the beginning of the text, and ties and roundings
// decide ids, so the very same sums are made here (those of version 0.2.3).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "titan/data/byte_pair_encoder.h"
#include "titan/data/encode_pipeline.h"
#include "titan/data/sentencepiece_model.h"

namespace titan {

class UnigramEncoder {
 public:
  explicit UnigramEncoder(const SentencePieceModel& model);

  /// Working memory of one thread, and the sum so far of the text that it is in.
  class Pass {
   public:
    /// A new text begins.
    void start() { sum_ = 0; }

   private:
    friend class UnigramEncoder;
    struct Node {
      float best = 0;       // sum of the best way that ends here
      int32_t id = -1;      // of its last piece
      int32_t begin = -1;   // of its last piece; −1: nothing ends here
      float runner_up = 0;  // the best sum among the other last pieces
    };
    static constexpr size_t kMostIds = 8;
    struct alignas(64) Word {  // a word cut before: enough to repeat the sums without the search, in one cache line
      PieceCache::Key key{};
      float most_sum = -1;  // up to which sum, in absolute value, no rounding can decide otherwise
      uint32_t count = 0;
      std::array<int32_t, kMostIds> ids{};
    };
    float sum_ = 0;
    std::vector<Node> nodes_;
    std::vector<Word> words_;
    std::vector<int32_t> found_;
  };

  /// Appends the ids of the stretch [begin, end) of normalised text, which no piece reaches out of; stretches follow
  /// one another. A run of unknown characters may give the unknown id several times, byte fallback the ids of their
  /// bytes.
  void encode(std::string_view text, size_t begin, size_t end, Pass& pass, ReadyIds& ids) const;

 private:
  struct Slot {
    uint64_t key = 0;  // where the node before lies · 256 + byte, plus 1; 0: free
    int32_t id = -1;   // of the piece that ends here
    float score = 0;
  };
  static constexpr uint32_t kNoNode = UINT32_MAX;

  void make_trie(const SentencePieceModel& model);
  void insert(std::string_view piece, int32_t id, float score);
  /// Where the node lies that `byte` leads to from `node`, or a free place for it.
  uint32_t place(uint32_t node, unsigned char byte) const;
  uint32_t step(uint32_t node, unsigned char byte) const;
  static void begin_again(size_t begin, size_t last, Pass& pass);
  void search(std::string_view stretch, float sum, Pass& pass) const;
  float margin_of(std::string_view stretch, const Pass& pass) const;
  void collect(std::string_view stretch, Pass& pass) const;
  void append_ids(std::string_view stretch, const Pass& pass, std::vector<int32_t>& ids) const;
  void keep(const PieceCache::Key& key, std::string_view stretch, Pass& pass, Pass::Word& word) const;
  float sum_of(const Pass::Word& word, float sum) const;
  bool repeat(const Pass::Word& word, Pass& pass, ReadyIds& ids) const;

  std::vector<Slot> slots_;            // a trie: open addressing by node and byte; a node is its place
  std::array<uint32_t, 256> first_{};  // by first byte, which most steps are about
  std::vector<float> scores_;          // by id; of a byte: what an id of it adds to the sum
  std::vector<int32_t> byte_ids_;
  int32_t unknown_id_;
  float unknown_score_ = 0;
  float largest_score_ = 0;  // absolute, of any piece
};

}  // namespace titan
