// What a SentencePiece model file says: a protocol buffer (sentencepiece_model.proto), read by an own small reader of
// the wire format. Knows nothing of encoding.
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
#include "encode_pipeline.h"
#include "titan/data/tokenizer.h"

namespace titan {

struct SentencePiece {
  enum class Type : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  std::string text;
  float score = 0;
  Type type = Type::normal;
};

/// Defaults are those of the format.
struct SentencePieceModel {
  enum class Kind : int32_t { unigram = 1, bpe = 2, word = 3, character = 4 };

  std::vector<SentencePiece> pieces;  ///< by id
  Kind kind = Kind::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";  ///< what <unk> becomes in decoded text

  std::string charsmap;  ///< precompiled normalisation rules; empty: none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  int32_t unknown_id = -1;
  uint64_t fingerprint = 0;  ///< of the file's bytes
};

/// Reads and checks a model file. Throws Error(bad_data): where the file is damaged, which part of it is not read here,
/// and what to do.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// Whether `bytes`, the beginning of a file, look like a model: a first piece as a length-delimited field 1.
bool looks_like_sentencepiece(std::string_view bytes);

/// The pieces that the user defined, by their ids: they are found before anything is cut.
std::vector<AddedToken> user_defined_pieces(const SentencePieceModel& model);

/// The byte of a piece "<0xNN>", or −1.
int byte_of_piece(std::string_view piece);

// The wire format of protocol buffers, as far as models need it: fields in order, one after the other.

/// Reads the fields of one message. `ok` turns false where the bytes are no message; reading then ends.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;        // of a varint, fixed32 or fixed64
    std::string_view content;  // of a length-delimited field
    enum class Wire : uint8_t { varint = 0, fixed64 = 1, content = 2, fixed32 = 5 } wire = Wire::varint;
  };

  /// The next field; false at the end and where the bytes are damaged.
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

// SentencePiece's unigram model: of all ways to cut a text into pieces the one with the highest sum of scores, found by
// Viterbi's algorithm. The package sums in single precision from the beginning of the text, and ties and roundings
// decide ids, so the very same sums are made here (those of version 0.2.3).

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
    uint64_t key = 0;  // position of the node before · 256 + byte, plus 1; 0: free
    int32_t id = -1;   // of the piece that ends here
    float score = 0;
  };
  static constexpr uint32_t kNoNode = UINT32_MAX;

  void make_trie(const SentencePieceModel& model);
  void insert(std::string_view piece, int32_t id, float score);
  /// The position of the node that `byte` leads to from `node`, or a free place for it.
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

// SentencePiece's BPE model: characters merge to the piece of the highest score, leftmost of equals. Immutable.

class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model);

  /// Appends the ids of a stretch of normalised text that no piece reaches out of; see UnigramEncoder::encode.
  void encode(std::string_view stretch, std::vector<int32_t>& parts, std::vector<int32_t>& ids) const;

 private:
  void add_merges(const SentencePieceModel& model);
  void first_parts(std::string_view stretch, std::vector<int32_t>& parts) const;

  // A part is a piece's id, the number of a character that is no piece but occurs in some (from pieces on), −1 for any
  // other character, or −2 − id for a user-defined piece, which merges with nothing.
  std::unordered_map<char32_t, int32_t> characters_;
  std::vector<uint32_t> lengths_;  // bytes of a part
  MergeTable table_;
  AddedTokenFinder user_defined_;
  std::vector<int32_t> byte_ids_;
  int32_t pieces_;
  int32_t unknown_id_;
};

// How a SentencePiece model rewrites text before it is cut: its precompiled character rules, and what it does with
// spaces. Immutable; a Pass walks through one text.

class SentencePieceNormalizer {
 public:
  /// Throws Error(bad_data) without the file's name when the rules are damaged.
  explicit SentencePieceNormalizer(const SentencePieceModel& model);

  /// One text on its way, so that a long one need not be held in normalised form as a whole.
  class Pass {
   public:
    /// `text` is valid UTF-8 and outlives the pass.
    Pass(const SentencePieceNormalizer& owner, std::string_view text);

    /// Appends normalised text until `out` holds at least `bytes` or the text is at its end; false when it is. Spaces
    /// at the end of the text are then taken off `out` where the model asks for it, so a caller that consumes `out`
    /// before must leave its trailing spaces there.
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
    size_t taken;  // bytes of the input that it stands for
  };
  Rewritten rewrite_front(std::string_view text) const;
  Rewritten rewrite_by_rule(std::string_view text) const;
  void read_charsmap(std::string_view charsmap);
  void find_simple_bytes();

  bool add_dummy_prefix_, remove_extra_whitespaces_, whitespace_as_suffix_;
  std::string_view space_;
  AddedTokenFinder user_defined_;
  std::vector<uint32_t> trie_;      // a double array: see rewrite_by_rule
  std::string replacements_;        // strings that end in NUL, named by their offset
  std::array<bool, 128> simple_{};  // ASCII that stands for itself whenever ASCII or nothing follows
};

// A SentencePiece model (Llama 2's kind of tokenizer): normalise, cut at words where no piece crosses them, encode.
// Ids and decoded text are those of the package `sentencepiece`.

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// Throws Error(bad_data) without the file's name when the model's normalisation rules are damaged.
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
  bool words_stand_alone_;  // no piece holds a word mark after anything but word marks
  mutable ScratchPool<Scratch> pool_;
};

}  // namespace titan
