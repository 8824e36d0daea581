#include "titan/data/tiktoken_file.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
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

/// "base64 rank", separated by spaces or tabs; nothing when it is anything else.
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

constexpr const char* kRemedy =
    "The file may be damaged or cut short: get it again, or give another model.tokenizer_path";

/// Collects the lines and refuses what encoding could not live with.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

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
      throw Error(ExitCode::bad_data, fmt::format("{}: the tokenizer file is empty. {}.", path_.string(), kRemedy));
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
                                path_.string(), byte, kRemedy));
      }
    }
    return tokens;
  }

 private:
  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw Error(ExitCode::bad_data, fmt::format("{}:{}: {}. {}.", path_.string(), line, what, kRemedy));
  }

  std::filesystem::path path_;
  std::vector<Line> parsed_;
  std::unordered_map<int64_t, int64_t> ranks_;      // rank → line number
  std::unordered_map<std::string, int64_t> lines_;  // token → line number
};

}  // namespace

std::vector<std::string> read_tiktoken_file(const std::filesystem::path& path) {
  std::string bytes = read_file(path, ExitCode::bad_data);
  Reader reader(path);
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

void write_tiktoken_file(const std::filesystem::path& path, std::span<const std::string> tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    text += fmt::format("{} {}\n", encode_base64(tokens[rank]), rank);
  }
  write_file_atomically(path, text);
}

bool looks_like_tiktoken(std::string_view bytes) { return parse_line(bytes.substr(0, bytes.find('\n'))).has_value(); }

}  // namespace titan
