// Damaged tokenizer files of every kind: each is read, or refused with one clear error; never a crash, never much
// memory.
#include <sys/resource.h>

#include <chrono>
#include <functional>

#include "src/text/tiktoken.h"
#include "support/checkout.h"
#include "support/files.h"
#include "support/fuzz_time.h"
#include "support/random_sequence.h"
#include "support/texts.h"
#include "tests/text/sentencepiece_files.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

using test::TemporaryFolder;

constexpr uint32_t kMostBytes = 64 << 10;

std::string json_seed() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string name = c == '"' || c == '\\' ? std::string("\\") + c : to_byte_alphabet({&c, 1});
    vocabulary += "\"" + name + "\":" + std::to_string(byte) + ",";
  }
  return R"json({"added_tokens":[{"id":259,"content":"<|end|>","special":true,"lstrip":true,"single_word":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
{"type":"Replace","pattern":{"String":" "},"content":"_"}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
{"type":"Split","pattern":{"Regex":"\\s+|[^\\s\\p{L}]{1,3}|\\p{L}+(?!\\S)"},"behavior":"Isolated","invert":false},
{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|end|>"}},{"Sequence":{"id":"A"}}],
"special_tokens":{"<|end|>":{"ids":[259]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},
{"type":"ByteFallback"},{"type":"Strip","content":" ","start":1,"stop":0},{"type":"ByteLevel"}]},
"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"byte_fallback":true,"ignore_merges":true,
"merges":["Ġ t",["h","e"],"Ġt he"],"vocab":{)json" +
         vocabulary + R"json("Ġt":256,"he":257,"Ġthe":258}}})json";
}

/// A model with a rule that makes "A" an "a".
std::string sentencepiece_seed(SentencePieceModel::Kind kind) {
  using Type = SentencePiece::Type;
  std::string pieces = test::byte_pieces() + test::piece("user", 0, Type::user_defined);
  for (const char* text : {"▁", "a", "b", "ab", "▁a", "bb", "▁ab", "é"}) pieces += test::piece(text, -1.0f);
  // A double array: the root leads to 'A' at its own place, whose value, one place off, names the string at 0.
  std::vector<uint32_t> units(66, 0);
  units['A'] = 'A' | 1u << 8 | 1u << 10;
  units['A' ^ 1] = 0x80000000u;
  std::string rules(4, '\0');
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::memcpy(rules.data(), &bytes, sizeof bytes);
  rules.append(reinterpret_cast<const char*>(units.data()), bytes).append("a\0", 2);
  return test::model_file(pieces, kind, true, true) + test::field(3, test::field(2, rules));
}

/// Changes, drops, repeats or inserts a few stretches.
std::string damaged(std::string bytes, PhiloxSequence& random) {
  auto below = [&](size_t limit) { return limit == 0 ? size_t{0} : random.below(static_cast<uint32_t>(limit)); };
  for (uint32_t times = 1 + random.below(6); times > 0 && !bytes.empty(); --times) {
    const size_t at = below(bytes.size());
    const size_t length = std::min(1 + below(random.below(4) == 0 ? 400 : 4), bytes.size() - at);
    switch (random.below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(below(bytes.size()), bytes.substr(at, length));
        break;
      case 4:
        bytes.replace(at, length,
                      std::to_string(static_cast<int64_t>(random.below(1u << 31)) * (random.below(2) ? 1 : -1)));
        break;
      default:
        bytes.resize(at);
    }
  }
  bytes.resize(std::min<size_t>(bytes.size(), kMostBytes));
  return bytes;
}

/// Opens what `write` gives, whole files in the first turn and damaged ones after it, until the time is up; what can be
/// read must encode and decode.
void fuzz_turns(const std::function<std::string(bool first, PhiloxSequence& random)>& write, uint64_t stream) {
  const auto end = std::chrono::steady_clock::now() + test::fuzz_time();
  const std::string text = "the 12 <|end|> abba user A\u00E9\u3000漢\n\n  " + std::string(200, 'b') + "\xFF";
  PhiloxSequence random(stream);
  int64_t read = 0, refused = 0;
  while (std::chrono::steady_clock::now() < end) {
    const std::string path = write(read + refused == 0, random);
    try {
      auto tokenizer = open_tokenizer(path);
      tokenizer->decode(tokenizer->encode(text, true, true));
      ++read;
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::bad_data)) << error.what();
      ASSERT_GT(std::string(error.what()).size(), 20u);
    }
    ASSERT_GT(read, 0) << "the undamaged file, which comes first, must be read";
  }
  EXPECT_GT(refused, 10) << "of " << read + refused;
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 1 << 20) << "KiB";
}

/// A tokenizer that is one file, made from `seed`.
void fuzz(const std::string& name, const std::string& seed, uint64_t stream) {
  TemporaryFolder folder;
  fuzz_turns(
      [&](bool first, PhiloxSequence& random) { return folder.write(name, first ? seed : damaged(seed, random)); },
      stream);
}

TEST(TokenizerFuzz, HuggingFaceVocabularyWithMergesAndConfigs) {
  std::string vocabulary = "{";
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string name = c == '"' || c == '\\' ? std::string("\\") + c : to_byte_alphabet({&c, 1});
    vocabulary += "\"" + name + "\":" + std::to_string(byte) + ",";
  }
  vocabulary += R"("Ġt":256,"he":257,"Ġthe":258,"<|end|>":259})";
  const std::pair<const char*, std::string> files[] = {
      {"vocab.json", vocabulary},
      {"merges.txt", "#version: 0.2\nĠ t\nh e\nĠt he\n"},
      {"tokenizer_config.json", R"({"bos_token":"<|end|>","eos_token":{"content":"<|end|>","lstrip":true},
"added_tokens_decoder":{"260":{"content":"<pad>","special":true}}})"},
      {"special_tokens_map.json", R"({"bos_token":"<|end|>","unk_token":"he"})"},
  };
  TemporaryFolder folder;
  const auto write = [&](bool first, PhiloxSequence& random) {
    const uint32_t worst = random.below(static_cast<uint32_t>(std::size(files)));
    for (const auto& [name, seed] : files) {
      const bool harm = !first && (name == files[worst].first || random.below(8) == 0);
      folder.write(name, harm ? damaged(seed, random) : seed);
    }
    return (folder / "vocab.json").string();
  };
  fuzz_turns(write, 5);
}

TEST(TokenizerFuzz, HuggingFaceFile) { fuzz("tokenizer.json", json_seed(), 1); }

TEST(TokenizerFuzz, SentencePieceBpeModel) {
  fuzz("tokenizer.model", sentencepiece_seed(SentencePieceModel::Kind::bpe), 2);
}

TEST(TokenizerFuzz, SentencePieceUnigramModel) {
  fuzz("tokenizer.model", sentencepiece_seed(SentencePieceModel::Kind::unigram), 3);
}

TEST(TokenizerFuzz, TiktokenModel) {
  fuzz("tokenizer.model", read_file(checkout() / "configs/tokenizers/stories.model"), 4);
}

}  // namespace
}  // namespace titan
