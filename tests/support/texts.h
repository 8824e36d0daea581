// Tokenizers that need no file, and texts: of stories, and random ones.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "src/text/tiktoken.h"
#include "support/checkout.h"
#include "support/random_sequence.h"
#include "titan/base/json.h"
#include "titan/text/utf8.h"

namespace titan::test {

/// 256 bytes, and then these tokens.
inline std::vector<std::string> bytes_and(std::vector<std::string> more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

/// One id per byte; BOS is 256 and EOS 257.
inline std::shared_ptr<const Tokenizer> byte_tokenizer() { return std::make_shared<TiktokenTokenizer>(bytes_and({})); }

/// The corpus that trains the debug model: 1,200 English texts of about 1,200 bytes each.
inline std::string story_corpus() { return (checkout() / "configs/corpora/stories.jsonl").string(); }
inline const std::vector<std::string>& stories() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> all;
    std::ifstream lines(story_corpus());
    for (std::string line; std::getline(lines, line);) all.push_back(parse_json(line).at("text"));
    return all;
  }();
  return texts;
}

/// Texts of random lengths in [0, longest], of random letters.
inline std::vector<std::string> random_texts(size_t count, uint32_t longest, uint64_t seed = 1) {
  PhiloxSequence random(seed);
  std::vector<std::string> texts(count);
  for (std::string& text : texts) {
    text.resize(random.below(longest + 1));
    for (char& c : text) c = static_cast<char>('a' + random.below(26));
  }
  return texts;
}

/// `characters` code points from `alphabet`, at random.
inline std::string random_text(const std::u32string& alphabet, size_t characters, uint64_t seed) {
  PhiloxSequence random(seed);
  std::string text;
  for (size_t i = 0; i < characters; ++i)
    append_utf8(alphabet[random.below(static_cast<uint32_t>(alphabet.size()))], text);
  return text;
}

}  // namespace titan::test
