// SentencePiece's unigram model: of all ways to cut a text into pieces the one with the highest sum of scores, found by
// Viterbi's algorithm. The package sums in single precision from the beginning of the text, and ties and roundings
// decide ids, so the very same sums are made here (those of version 0.2.3).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

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
    struct Word {  // a word cut before: enough to repeat the sums without the search
      std::string text;
      std::vector<int32_t> ids;
      float margin = 0;
    };
    float sum_ = 0;
    std::vector<Node> nodes_;
    std::vector<Word> words_;
    std::vector<int32_t> found_;
  };

  /// Appends the ids of a stretch of normalised text that no piece reaches out of; stretches follow one another. A run
  /// of unknown characters may give the unknown id several times, byte fallback gives the ids of their bytes.
  void encode(std::string_view stretch, Pass& pass, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t key = 0;  // node · 256 + byte, plus 1; 0: free
    uint32_t child = 0;
    int32_t id = -1;  // of the piece that ends here
    float score = 0;
  };

  void insert(std::string_view piece, int32_t id, float score);
  const Slot* step(uint32_t node, unsigned char byte) const;
  static void begin_again(size_t begin, size_t last, Pass& pass);
  void search(std::string_view stretch, float sum, Pass& pass) const;
  float margin_of(std::string_view stretch, const Pass& pass) const;
  void collect(std::string_view stretch, Pass& pass) const;
  void append_ids(std::string_view stretch, const Pass& pass, std::vector<int32_t>& ids) const;
  bool repeat(const Pass::Word& word, Pass& pass, std::vector<int32_t>& ids) const;

  std::vector<Slot> slots_;  // a trie: open addressing by node and byte
  uint32_t nodes_ = 1;
  std::vector<float> scores_;
  std::vector<bool> plain_;  // pieces whose score does not depend on where they stand
  std::vector<int32_t> byte_ids_;
  int32_t unknown_id_;
  float unknown_score_ = 0;
  float largest_score_ = 0;  // absolute, of any piece
};

}  // namespace titan
