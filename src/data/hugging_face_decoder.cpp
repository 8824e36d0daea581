#include "titan/data/hugging_face_decoder.h"

#include <fmt/format.h>

#include <charconv>

#include "titan/base/error.h"
#include "titan/data/byte_alphabet.h"
#include "titan/data/pre_tokenizer.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

using Tokens = std::vector<std::string>;

std::string concatenated(const Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Tokens that the byte alphabet cannot spell (added ones) stand for their own bytes.
void join_bytes(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += from_byte_alphabet(token).value_or(token);
  repair_utf8(bytes);
  tokens.assign(1, std::move(bytes));
}

/// The byte of "<0xNN>", or −1.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = -1;
  auto [end, problem] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return problem == std::errc() && end == token.data() + 5 ? byte : -1;
}

/// Runs of byte tokens become text where they are valid UTF-8, else one U+FFFD for each byte.
void join_fallback_bytes(Tokens& tokens) {
  Tokens joined;
  std::string bytes;
  auto flush = [&] {
    if (valid_utf8_length(bytes) == bytes.size()) {
      if (!bytes.empty()) joined.push_back(bytes);
    } else {
      joined.insert(joined.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    joined.push_back(std::move(token));
  }
  flush();
  tokens = std::move(joined);
}

/// Takes up to `start` copies of `content` off the front of each token and up to `stop` off its end.
void strip(Tokens& tokens, const std::string& content, int64_t start, int64_t stop) {
  for (std::string& token : tokens) {
    for (int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
    for (int64_t i = 0; i < stop && token.ends_with(content); ++i) token.resize(token.size() - content.size());
  }
}

void undo_metaspace(Tokens& tokens, const std::string& replacement, bool drop_first) {
  for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], replacement, i == 0 && drop_first ? "" : " ");
}

}  // namespace

HuggingFaceDecoder::HuggingFaceDecoder(const std::optional<JsonNode>& node) : joined_by_spaces_(!node) {
  if (node) add(*node);
}

HuggingFaceDecoder HuggingFaceDecoder::byte_level() {
  HuggingFaceDecoder made;
  made.steps_.emplace_back(join_bytes);
  return made;
}

void HuggingFaceDecoder::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "Sequence") {
    const JsonNode all = node.at("decoders");
    for (size_t i = 0; i < all.size(); ++i) add(all.at(i));
  } else if (type == "ByteLevel") {
    steps_.emplace_back(join_bytes);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(join_fallback_bytes);
  } else if (type == "Fuse") {
    steps_.emplace_back([](Tokens& tokens) { tokens.assign(1, concatenated(tokens)); });
  } else if (type == "Replace" && node.at("pattern").find("String")) {
    const std::string from = node.at("pattern").text("String");
    if (from.empty()) node.fail("replaces an empty text. Give a text to replace.");
    steps_.emplace_back([from, to = node.text("content")](Tokens& tokens) {
      for (std::string& token : tokens) replace_all(token, from, to);
    });
  } else if (type == "Strip") {
    const std::string content = node.text("content");
    if (content.empty()) node.fail("strips an empty text. Give a character.");
    steps_.emplace_back([content, start = node.at("start").number(), stop = node.at("stop").number()](Tokens& tokens) {
      strip(tokens, content, start, stop);
    });
  } else if (type == "Metaspace") {
    std::optional<JsonNode> scheme = node.find("prepend_scheme");
    const bool drop = scheme ? scheme->text() != "never" : node.flag("add_prefix_space", true);
    const std::string replacement = node.text("replacement");
    if (replacement.empty()) node.fail("has an empty replacement. Give the character that stands for a space.");
    steps_.emplace_back([=](Tokens& tokens) { undo_metaspace(tokens, replacement, drop); });
  } else {
    node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  }
}

std::string HuggingFaceDecoder::decode(std::vector<std::string> tokens) const {
  if (joined_by_spaces_) return fmt::format("{}", fmt::join(tokens, " "));
  for (const Step& step : steps_) step(tokens);
  return concatenated(tokens);
}

}  // namespace titan
