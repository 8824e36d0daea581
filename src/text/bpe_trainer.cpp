#include "bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <tuple>

#include "pre_tokenizer.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

struct Word {
  std::vector<int32_t> parts;
  int64_t count;
};

struct Pair {
  int32_t left, right;
  bool operator==(const Pair&) const = default;
};
struct PairHash {
  size_t operator()(const Pair& pair) const {
    uint64_t key = uint64_t{static_cast<uint32_t>(pair.left)} << 32 | static_cast<uint32_t>(pair.right);
    return static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> 16);
  }
};

/// A pair's count, and the words that ever contained it (some may no longer do).
struct Occurrences {
  int64_t count = 0;
  std::vector<int32_t> words;
};

/// The state of one training: words as sequences of token ids, and where each pair occurs.
class Merger {
 public:
  explicit Merger(std::vector<Word> words) : words_(std::move(words)) {
    for (int byte = 0; byte < 256; ++byte) add_token(std::string(1, static_cast<char>(byte)));
    for (size_t index = 0; index < words_.size(); ++index) {
      const Word& word = words_[index];
      for (size_t i = 0; i + 1 < word.parts.size(); ++i) count(static_cast<int32_t>(index), i, word.count);
    }
    for (const auto& [pair, occurrences] : pairs_) candidates_.push({occurrences.count, pair});
    changed_.clear();
  }

  /// Merges the most frequent pair; false if no pair occurs twice.
  bool merge_next() {
    while (!candidates_.empty()) {
      Candidate best = candidates_.top();
      candidates_.pop();
      auto found = pairs_.find(best.pair);
      if (found == pairs_.end() || found->second.count != best.count) continue;  // stale: the heap has a newer entry
      if (best.count < 2) return false;
      merge(best.pair, std::move(found->second.words));
      return true;
    }
    return false;
  }

  std::vector<std::string>& tokens() { return tokens_; }

 private:
  struct Candidate {
    int64_t count;
    Pair pair;
    /// Heap order: a candidate with fewer occurrences, then with higher ids, is smaller.
    bool operator<(const Candidate& other) const {
      return std::tuple(count, -pair.left, -pair.right) < std::tuple(other.count, -other.pair.left, -other.pair.right);
    }
  };

  /// The id of the token `bytes`. Two pairs can spell the same token ("a"+"bc", "ab"+"c"): they share one id.
  int32_t add_token(std::string bytes) {
    auto [at, fresh] = ids_.try_emplace(bytes, static_cast<int32_t>(tokens_.size()));
    if (fresh) tokens_.push_back(std::move(bytes));
    return at->second;
  }

  /// Adds `change` to the count of the pair (parts[i], parts[i + 1]) of a word.
  void count(int32_t word, size_t i, int64_t change) {
    const auto& parts = words_[static_cast<size_t>(word)].parts;
    Pair pair{parts[i], parts[i + 1]};
    Occurrences& occurrences = pairs_[pair];
    occurrences.count += change;
    if (change > 0 && (occurrences.words.empty() || occurrences.words.back() != word))
      occurrences.words.push_back(word);
    changed_.push_back(pair);
  }

  void merge(Pair pair, std::vector<int32_t> words) {
    int32_t merged = add_token(tokens_[static_cast<size_t>(pair.left)] + tokens_[static_cast<size_t>(pair.right)]);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    changed_.clear();
    for (int32_t word : words) merge_in_word(word, pair, merged);
    pairs_.erase(pair);
    auto less = [](const Pair& a, const Pair& b) { return std::tie(a.left, a.right) < std::tie(b.left, b.right); };
    std::sort(changed_.begin(), changed_.end(), less);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& touched : changed_) {
      if (auto at = pairs_.find(touched); at != pairs_.end()) candidates_.push({at->second.count, touched});
    }
  }

  /// Subtracts the word's pairs from the counts, merges, and counts them again: words are short, so this is cheap.
  void merge_in_word(int32_t index, Pair pair, int32_t merged) {
    Word& word = words_[static_cast<size_t>(index)];
    auto& parts = word.parts;
    auto holds = [&](size_t i) { return parts[i] == pair.left && parts[i + 1] == pair.right; };
    size_t first = 0;
    while (first + 1 < parts.size() && !holds(first)) ++first;
    if (first + 1 >= parts.size()) return;
    for (size_t i = 0; i + 1 < parts.size(); ++i) count(index, i, -word.count);
    size_t kept = 0;
    for (size_t i = 0; i < parts.size(); ++kept) {
      bool here = i + 1 < parts.size() && holds(i);
      parts[kept] = here ? merged : parts[i];
      i += here ? 2 : 1;
    }
    parts.resize(kept);
    for (size_t i = 0; i + 1 < parts.size(); ++i) count(index, i, word.count);
  }

  std::vector<Word> words_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> candidates_;
  std::vector<Pair> changed_;
};

}  // namespace

void BpeTrainer::add(std::string_view text) {
  std::string storage;
  SegmentCutter cutter(valid_utf8(text, storage));
  for (std::string_view segment; cutter.next(segment);) {
    for (size_t begin = 0, end; begin < segment.size(); begin = end) {
      end = splitter_.piece_end(segment, begin, scratch_);
      std::string_view piece = segment.substr(begin, end - begin);
      auto at = counts_.find(piece);
      if (at == counts_.end()) at = counts_.emplace(piece, 0).first;
      ++at->second;
    }
  }
  text_bytes_ += static_cast<int64_t>(text.size());
}

std::vector<std::string> BpeTrainer::train(int64_t size) const {
  if (size < 256) {
    throw Error(ExitCode::bad_data,
                fmt::format("a byte-level vocabulary holds at least the 256 bytes; {} tokens are too few. Ask "
                            "for a larger vocabulary.",
                            size));
  }
  std::vector<Word> words;
  for (const auto& [piece, count] : counts_) {
    Word word{{}, count};
    for (char c : piece) word.parts.push_back(static_cast<unsigned char>(c));
    words.push_back(std::move(word));
  }
  Merger merger(std::move(words));
  while (static_cast<int64_t>(merger.tokens().size()) < size) {
    if (!merger.merge_next()) {
      throw Error(
          ExitCode::bad_data,
          fmt::format(
              "{} of text give only {} tokens, {} were asked for: no pair occurs twice any more. Give more text "
              "or ask for a smaller vocabulary.",
              human_bytes(static_cast<double>(text_bytes_)), merger.tokens().size(), size));
    }
  }
  return std::move(merger.tokens());
}

}  // namespace titan
