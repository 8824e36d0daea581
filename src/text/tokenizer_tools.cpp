#include "titan/text/tokenizer_tools.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <istream>
#include <ostream>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

std::string read_all(std::istream& in) {
  std::string text;
  std::array<char, 65536> block;
  while (in.read(block.data(), block.size()), in.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > kLongestText) refuse_long_text();
  }
  return text;
}

/// A token as readable text: in quotes, bytes other than printable ASCII as \xNN.
std::string quoted(const std::string& bytes) {
  std::string text = "\"";
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    text += byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\' ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text + "\"";
}

void measure_encoding(const Tokenizer& tokenizer, const TokenizerEncoding& encoding, const std::string& text,
                      std::ostream& out) {
  for (int64_t i = 0; i < encoding.measure; ++i) {
    auto began = std::chrono::steady_clock::now();
    size_t tokens = tokenizer.encode(text, encoding.bos, encoding.eos).size();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    out << fmt::format("{} tokens  {:.6f} s  {:.2f} MB/s\n", tokens, seconds,
                       static_cast<double>(text.size()) / seconds / 1e6);
  }
}

}  // namespace

void refuse_long_text() {
  throw Error(ExitCode::bad_data, fmt::format("the text is longer than {}; tokenize a corpus with titan_train data "
                                              "tokenize",
                                              human_bytes(static_cast<double>(kLongestText))));
}

void encode_stream(const Tokenizer& tokenizer, const TokenizerEncoding& encoding, std::istream& in, std::ostream& out) {
  std::string text = read_all(in);
  if (encoding.measure > 0) {
    measure_encoding(tokenizer, encoding, text, out);
    return;
  }
  const std::vector<int32_t> ids = tokenizer.encode(text, encoding.bos, encoding.eos);
  for (std::span<const int32_t> rest = ids;
       !rest.empty();) {  // in parts, since the text of all ids may be many times as long as they are
    const std::span<const int32_t> some = rest.first(std::min<size_t>(rest.size(), 65536));
    rest = rest.subspan(some.size());
    out << fmt::format("{}", fmt::join(some, " ")) << (rest.empty() ? "" : " ");
  }
  out << '\n';
}

void decode_stream(const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  std::vector<int32_t> ids;
  std::istringstream words(read_all(in));
  for (std::string word; words >> word;) {
    int32_t id = 0;
    auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (problem != std::errc() || end != word.data() + word.size()) {
      throw Error(ExitCode::bad_data, fmt::format("\"{}\" is not a token id. Give whole numbers separated by spaces.",
                                                  printable(word.substr(0, 100))));
    }
    ids.push_back(id);
  }
  out << tokenizer.decode(ids);
}

void describe_tokenizer(const Tokenizer& tokenizer, std::ostream& out) {
  out << fmt::format("{}\n", tokenizer.description());
  out << fmt::format("{:<12} {}\n{:<12} {}\n", "kind", tokenizer.name(), "ids",
                     with_thousands(tokenizer.vocabulary_size()));
  for (auto [label, id] : {std::pair("begin", tokenizer.bos_id()), std::pair("end", tokenizer.eos_id())}) {
    out << fmt::format("{:<12} {}\n", label,
                       id == Tokenizer::kNoId ? "none" : fmt::format("{} {}", id, printable(tokenizer.token_name(id))));
  }
  if (!tokenizer.reads_text()) return;
  std::vector<std::string> longest;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string name = tokenizer.token_name(id);
    const bool special = name.starts_with('<') && name.ends_with('>');
    if (!special) longest.push_back(tokenizer.decode(std::span(&id, 1)));
  }
  std::stable_sort(longest.begin(), longest.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  longest.resize(std::min<size_t>(longest.size(), 5));
  std::transform(longest.begin(), longest.end(), longest.begin(), quoted);
  out << fmt::format("{:<12} {}\n", "longest", fmt::join(longest, " "));
}

}  // namespace titan
