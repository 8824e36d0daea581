// The contents of a SentencePiece model file: a protocol buffer (sentencepiece_model.proto), parsed by a small
// wire-format reader below. Knows nothing of encoding.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "added_tokens.h"
#include "byte_pair_encoder.h"
#include "encode_buffers.h"
#include "titan/text/tokenizer.h"

namespace titan {

struct SentencePiece {
  enum class Type : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  std::string text;
  float score = 0;
  Type type = Type::normal;
};

/// Defaults are the format's.
struct SentencePieceModel {
  enum class Kind : int32_t { unigram = 1, bpe = 2, word = 3, character = 4 };

  std::vector<SentencePiece> pieces;  ///< by id
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";  ///< decoded text of <unk>

  std::string charsmap;  ///< precompiled normalisation rules; empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  bool has_bos = true;  ///< whether the trainer gave bos_piece and eos_piece ids
  bool has_eos = true;
  int32_t unknown_id = -1;
  uint64_t fingerprint = 0;  ///< of the file's bytes
};

/// Reads and validates a model file. Throws Error(bad_data) with the damaged place or unsupported part, and the remedy.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// Whether `bytes`, the beginning of a file, look like a model: field 1, length-delimited, holds the first piece.
bool looks_like_sentencepiece(std::string_view bytes);

/// The user-defined pieces with their ids: they are matched before the text is split.
std::vector<AddedToken> user_defined_pieces(const SentencePieceModel& model);

/// The byte of a piece "<0xNN>", or −1.
int byte_of_piece(std::string_view piece);

// The wire format of protocol buffers, as far as models need it.

/// Reads the fields of one message in order. Malformed bytes set `ok` to false and end the reading.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;        // of a varint, fixed32 or fixed64
    std::string_view content;  // of a length-delimited field
    enum class Wire : uint8_t { varint = 0, fixed64 = 1, content = 2, fixed32 = 5 } wire = Wire::varint;
  };

  /// The next field; false at the end and at malformed bytes.
  bool next(Field& field);
  bool ok() const { return ok_; }
  size_t position() const { return at_; }

 private:
  std::optional<uint64_t> varint();
  bool take(size_t bytes, uint64_t& value);

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

// SentencePiece's unigram model: the segmentation with the highest sum of scores, found by Viterbi's algorithm. The
// package sums in float32 from the start of the text, and ties and rounding errors decide ids, so this code computes
// bitwise the same sums (as version 0.2.3).

class UnigramEncoder {
 public:
  explicit UnigramEncoder(const SentencePieceModel& model);

  /// One thread's working memory, and the running sum of its current text.
  class Pass {
   public:
    /// Starts a new text.
    void start() { sum_ = 0; }

   private:
    friend class UnigramEncoder;
    struct Node {
      float best = 0;       // the highest sum of a segmentation that ends here
      int32_t id = -1;      // of that segmentation's last piece
      int32_t begin = -1;   // start of that last piece; −1: no segmentation ends here
      float runner_up = 0;  // the highest sum with another last piece
    };
    static constexpr size_t kMostIds = 8;  // what a cache line holds beside key, bound and count
    struct alignas(64) Word {              // a cached word: its ids repeat the sums without a search; one cache line
      PieceCache::Key key{};
      float most_sum = -1;  // bound on |sum| below which rounding cannot change the result
      uint32_t count = 0;
      std::array<int32_t, kMostIds> ids{};
    };
    float sum_ = 0;
    std::vector<Node> nodes_;
    std::vector<Word> words_;
    std::vector<int32_t> found_;
  };

  /// Appends the ids of the stretch [begin, end) of normalised text; no piece crosses its bounds, and stretches are
  /// consecutive. A run of unknown characters may give the unknown id several times, or with byte fallback the ids of
  /// its bytes.
  void encode(std::string_view text, size_t begin, size_t end, Pass& pass, ReadyIds& ids) const;

 private:
  struct Slot {
    uint64_t key = 0;  // parent node · 256 + byte, plus 1; 0: free
    int32_t id = -1;   // of the piece that ends here
    float score = 0;
  };
  static constexpr uint32_t kNoNode = UINT32_MAX;

  void make_trie(const SentencePieceModel& model);
  void insert(std::string_view piece, int32_t id, float score);
  /// The slot of `node`'s child for `byte`, or a free slot for it.
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

  std::vector<Slot> slots_;            // a trie: open addressing by node and byte; a node is its slot number
  std::array<uint32_t, 256> first_{};  // root's children by byte: most steps start at the root
  std::vector<float> scores_;          // by id; for a byte piece: its contribution to the sum
  std::vector<int32_t> byte_ids_;
  int32_t unknown_id_;
  float unknown_score_ = 0;
  float largest_score_ = 0;  // largest absolute score of any piece
};

// SentencePiece's BPE model: merges characters into the piece with the highest score, leftmost of equals. Immutable.

class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model);

  /// Appends the ids of a stretch of normalised text; no piece crosses its bounds. See UnigramEncoder::encode.
  void encode(std::string_view stretch, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

 private:
  void add_merges(const SentencePieceModel& model);
  void first_parts(std::string_view stretch, std::vector<int32_t>& parts) const;

  // A part is a piece's id; the number (from pieces on) of a character that is not a piece but occurs in one; −1 for
  // any other character; or −2 − id for a user-defined piece, which is never merged.
  std::unordered_map<char32_t, int32_t> characters_;
  std::vector<uint32_t> lengths_;  // bytes of a part
  MergeTable table_;
  AddedTokenFinder user_defined_;
  std::vector<int32_t> byte_ids_;
  int32_t pieces_;
  int32_t unknown_id_;
};

// A SentencePiece model's normalisation before splitting: precompiled character rules and the handling of spaces.
// Immutable; a Pass normalises one text.

class SentencePieceNormalizer {
 public:
  /// Throws Error(bad_data) without the file's name if the rules are damaged.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  /// Incremental normalisation of one text, so that a long text is never stored in normalised form as a whole.
  class Pass {
   public:
    /// `text` is valid UTF-8 and outlives the pass.
    Pass(const SentencePieceNormalizer& owner, std::string_view text);

    /// Appends normalised text until `out` holds at least `bytes` or the text ends; false at the end. At the end,
    /// trailing spaces are removed from `out` if the model requires it, so a caller that consumes `out` earlier must
    /// leave its trailing spaces there.
    bool run(size_t bytes, std::string& out);

   private:
    void append(std::string_view piece, std::string& out);

    const SentencePieceNormalizer& owner_;
    std::string_view rest_;
    bool after_space_;
    bool started_ = false;
    bool wrote_nothing_ = false;
  };

 private:
  struct Rewritten {
    std::string_view text;
    size_t taken;  // consumed bytes of the input
  };
  Rewritten rewrite_front(std::string_view text) const;
  Rewritten rewrite_by_rule(std::string_view text) const;
  void read_charsmap(std::string_view charsmap);
  void find_simple_bytes();

  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  AddedTokenFinder user_defined_;
  std::vector<uint32_t> trie_;  // a double array: see rewrite_by_rule
  std::string replacements_;    // NUL-terminated strings, referenced by offset
  // True for each ASCII byte that normalisation leaves alone when the next byte is ASCII or the text ends.
  std::array<bool, 128> simple_{};
};

// A SentencePiece model (Llama 2's tokenizer): normalises, splits at words if no piece crosses them, encodes. Ids and
// decoded text equal those of the package `sentencepiece`.

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// Throws Error(bad_data) without the file's name if the model's normalisation rules are damaged.
  explicit SentencePieceTokenizer(SentencePieceModel model);
  ~SentencePieceTokenizer() override;

  void encode_append(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<std::pair<std::string, int32_t>> special_tokens() const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::string token_name(int32_t id) const override { return piece(id).text; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  int32_t bos_id() const override { return bos_id_; }
  int32_t eos_id() const override { return eos_id_; }
  std::string name() const override;
  std::string description() const override;
  uint64_t fingerprint() const override { return model_.fingerprint; }

 private:
  struct Scratch;

  template <class Encode>
  void for_each_stretch(std::string_view text, std::string& normalized, const Encode& encode) const;
  const SentencePiece& piece(int32_t id) const;

  SentencePieceModel model_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<SentencePieceBpe> bpe_;
  std::unique_ptr<UnigramEncoder> unigram_;
  int32_t bos_id_ = kNoId;
  int32_t eos_id_ = kNoId;
  bool words_stand_alone_;  // no piece has a word mark after another character
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace titan
