#include "tiktoken.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "byte_pair_encoder.h"
#include "pre_tokenizer.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {

struct TiktokenTokenizer::Scratch {
  explicit Scratch(const PieceSplitter& splitter) : expression(splitter) {}
  PieceSplitter::Scratch expression;
  PieceCache cache;
  std::string repaired;
};

TiktokenTokenizer::TiktokenTokenizer(std::vector<std::string> tokens, std::vector<std::string> notices)
    : encoder_(std::move(tokens)),
      notices_(std::move(notices)),
      fingerprint_(tiktoken_fingerprint(encoder_.tokens())) {}

TiktokenTokenizer::~TiktokenTokenizer() = default;

void TiktokenTokenizer::encode_append(std::string_view text, std::vector<int32_t>& ids) const {
  auto lease = pool_.borrow([this] { return std::make_unique<Scratch>(splitter_); });
  Scratch& scratch = *lease;
  SegmentCutter cutter(valid_utf8(text, scratch.repaired));
  for (std::string_view segment; cutter.next(segment);) encode_segment(segment, scratch, ids);
}

void TiktokenTokenizer::encode_segment(std::string_view segment, Scratch& scratch, std::vector<int32_t>& ids) const {
  CachedPieces pieces(scratch.cache, ids);
  for (size_t begin = 0, end; begin < segment.size(); begin = end) {
    end = splitter_.piece_end(segment, begin, scratch.expression);
    pieces.add(segment, begin, end,
               [this](std::string_view piece, std::vector<int32_t>& to) { encoder_.encode_piece(piece, to); });
  }
  pieces.flush();
}

std::vector<std::pair<std::string, int32_t>> TiktokenTokenizer::special_tokens() const {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t i = 0; i < kSpecialTokens; ++i) tokens.emplace_back(special_name(i), encoder_.size() + i);
  return tokens;
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
  repair_utf8(bytes);
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

namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int, 256> kDigitValues = [] {
  std::array<int, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
  return values;
}();

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (char c : text.substr(0, text.size() - padding)) {
    int value = kDigitValues[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<char>(bits >> held & 0xFF));
    }
  }
  return bytes;
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) {
      text.push_back(i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63]);
    }
  }
  return text;
}

struct Line {
  std::string token;
  int64_t rank;
};

/// Parses "base64 rank", separated by spaces or tabs; nothing if the line is invalid.
std::optional<Line> parse_line(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  size_t cut = line.find_first_of(kBlanks);
  size_t number = line.find_first_not_of(kBlanks, cut);
  if (cut == line.npos || number == line.npos) return std::nullopt;
  std::string_view digits = line.substr(number);
  digits = digits.substr(0, digits.find_last_not_of(kBlanks) + 1);
  int64_t rank = 0;
  auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  auto token = decode_base64(line.substr(0, cut));
  if (!token || problem != std::errc() || end != digits.data() + digits.size() || rank < 0) return std::nullopt;
  return Line{std::move(*token), rank};
}

constexpr const char* kTiktokenRemedy =
    "The file may be damaged or cut short: get it again, or give another model.tokenizer_path";

/// Collects the lines and rejects files that would break encoding.
class TiktokenReader {
 public:
  explicit TiktokenReader(const std::filesystem::path& path) : path_(path) {}

  void add(std::string_view text, int64_t line_number) {
    auto line = parse_line(text);
    if (!line) fail(line_number, "this is not a base64 token followed by its rank");
    if (auto [at, fresh] = ranks_.try_emplace(line->rank, line_number); !fresh) {
      fail(line_number, fmt::format("rank {} comes a second time, first in line {}", line->rank, at->second));
    }
    if (auto [at, fresh] = lines_.try_emplace(line->token, line_number); !fresh) {
      fail(line_number, fmt::format("this token comes a second time, first in line {}", at->second));
    }
    parsed_.push_back(std::move(*line));
  }

  std::vector<std::string> finish() {
    if (parsed_.empty()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("{}: the tokenizer file is empty. {}.", path_.string(), kTiktokenRemedy));
    }
    auto count = static_cast<int64_t>(parsed_.size());
    std::vector<std::string> tokens(parsed_.size());
    for (Line& line : parsed_) {
      if (line.rank >= count) {
        fail(ranks_[line.rank],
             fmt::format("rank {} is too high: the {} tokens must have the ranks 0 to {}, without gaps", line.rank,
                         count, count - 1));
      }
      tokens[static_cast<size_t>(line.rank)] = std::move(line.token);
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (!lines_.contains(std::string(1, static_cast<char>(byte)))) {
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: there is no token for the single byte 0x{:02x}, so some text could "
                                "not be encoded. {}.",
                                path_.string(), byte, kTiktokenRemedy));
      }
    }
    return tokens;
  }

 private:
  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw Error(ExitCode::bad_data, fmt::format("{}:{}: {}. {}.", path_.string(), line, what, kTiktokenRemedy));
  }

  std::filesystem::path path_;
  std::vector<Line> parsed_;
  std::unordered_map<int64_t, int64_t> ranks_;      // rank → line number
  std::unordered_map<std::string, int64_t> lines_;  // token → line number
};

}  // namespace

std::vector<std::string> read_tiktoken_file(const std::filesystem::path& path) {
  std::string bytes = read_file(path, ExitCode::bad_data, kLongestTextFile);
  TiktokenReader reader(path);
  int64_t line_number = 0;
  for (std::string_view rest = bytes; !rest.empty();) {
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") != line.npos) reader.add(line, line_number);
  }
  return reader.finish();
}

namespace {

// Ends a file of `tokenizer train`, so that a file of ours is known: an empty line, which all readers of the format
// skip.
constexpr std::string_view kOwnMark = "\n";

struct KnownVocabulary {
  size_t tokens;
  const char* name;
};

// tiktoken_fingerprint of the tokenizer.model in Meta's releases of Llama 3.
constexpr uint64_t kLlama3Fingerprint = 0xF88F56AA98D26A53;

// Vocabularies are recognised by their number of tokens, which no two share.
constexpr KnownVocabulary kOtherVocabularies[] = {
    {50'256, "r50k_base, GPT-3's"},
    {50'257, "GPT-2's"},
    {50'280, "p50k_base, Codex's"},
    {100'256, "cl100k_base, GPT-4's"},
    {151'329, "GLM-4's"},
    {151'643, "Qwen's (qwen.tiktoken)"},
    {163'584, "Kimi's"},
    {199'998, "o200k_base, GPT-4o's"},
    {200'000, "Llama 4's"},
};

/// `tokenizer train` begins with the 256 bytes in order, as some other programs do, and ends the file with kOwnMark.
bool is_own_vocabulary(const std::filesystem::path& path, std::span<const std::string> tokens) {
  for (size_t byte = 0; byte < 256; ++byte) {
    if (tokens[byte] != std::string(1, static_cast<char>(byte))) return false;
  }
  return read_file(path, ExitCode::bad_data).ends_with("\n" + std::string(kOwnMark));
}

}  // namespace

std::vector<std::string> check_is_llama3(const std::filesystem::path& path, std::span<const std::string> tokens) {
  const auto fail = [&](const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("tokenizer {}: {}, which {}.", path.string(), what, kTokenizeOffline));
  };
  if (tiktoken_fingerprint(tokens) == kLlama3Fingerprint || is_own_vocabulary(path, tokens)) return {};
  for (const KnownVocabulary& known : kOtherVocabularies) {
    if (known.tokens == tokens.size())
      fail(fmt::format("the {} tokens are {}", with_thousands(known.tokens), known.name));
  }
  const PieceSplitter splitter;
  PieceSplitter::Scratch scratch(splitter);
  for (const std::string& token : tokens) {
    if (valid_utf8_length(token) != token.size() || splitter.piece_end(token, 0, scratch) == token.size()) continue;
    fail(fmt::format("Llama 3's expression would split the token \"{}\", so this is another model's vocabulary",
                     printable(token)));
  }
  return {
      fmt::format("tokenizer {}: its {} tokens are not Llama 3's; they are read with Llama 3's expression and its 256 "
                  "special tokens after them (end the file with an empty line if titan_train tokenizer train made it)",
                  path.string(), with_thousands(tokens.size()))};
}

void write_tiktoken_file(const std::filesystem::path& path, std::span<const std::string> tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    text += fmt::format("{} {}\n", encode_base64(tokens[rank]), rank);
  }
  text += kOwnMark;
  write_file_atomically(path, text);
}

uint64_t tiktoken_fingerprint(std::span<const std::string> tokens) {
  std::string all = "tiktoken";
  for (const std::string& token : tokens) all += fmt::format("\n{} {}", token.size(), token);
  return name_key(all);
}

nlohmann::json tiktoken_merges(std::span<const std::string> tokens) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks[tokens[rank]] = rank;
  nlohmann::json merges = nlohmann::json::array();
  for (std::string_view token : tokens) {
    std::vector<std::pair<size_t, size_t>> cuts;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      auto left = ranks.find(token.substr(0, cut));
      auto right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) cuts.emplace_back(left->second, right->second);
    }
    std::sort(cuts.begin(), cuts.end());
    for (auto [left, right] : cuts) merges.push_back({to_byte_alphabet(tokens[left]), to_byte_alphabet(tokens[right])});
  }
  return merges;
}

bool looks_like_tiktoken(std::string_view bytes) { return parse_line(bytes.substr(0, bytes.find('\n'))).has_value(); }

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/// GPT-2's byte alphabet: bytes that print stand for themselves, the others map to U+0100 and on, in order.
constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    characters[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  return characters;
}();

constexpr size_t kEnd = 0x100 + 68;  // one past the largest: 68 bytes do not print

constexpr std::array<int16_t, kEnd> kBytes = [] {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) append_utf8(kCharacters[static_cast<unsigned char>(byte)], text);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    const char32_t character = first_code_point(text.substr(at));
    if (character >= kEnd || kBytes[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[character]));
  }
  return bytes;
}

}  // namespace titan
