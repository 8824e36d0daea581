#include "titan/text/tokenizer_trainer.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bpe_trainer.h"
#include "piece_splitter.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

/// The special tokens are vocabulary entries that no merge produces, not added tokens: added tokens would be matched in
/// text, while tiktoken reads text that looks like a special token as ordinary text.
Json vocabulary_of(std::span<const std::string> tokens, std::span<const std::string> special) {
  Json vocabulary = Json::object();
  auto add = [&](const std::string& token) {
    // Not operator[]: an ordered object searches all earlier keys, which is quadratic in the vocabulary.
    vocabulary.get_ref<Json::object_t&>().emplace_back(to_byte_alphabet(token), vocabulary.size());
  };
  std::for_each(tokens.begin(), tokens.end(), add);
  std::for_each(special.begin(), special.end(), add);
  return vocabulary;
}

/// Adds BOS before every text, like Llama 3's own folder.
Json post_processor(size_t id, const std::string& begin) {
  auto special = [&](int type) { return Json{{"SpecialToken", {{"id", begin}, {"type_id", type}}}}; };
  auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", {special(0), text("A", 0)}},
          {"pair", {special(0), text("A", 0), special(1), text("B", 1)}},
          {"special_tokens", {{begin, {{"id", begin}, {"ids", Json::array({id})}, {"tokens", Json::array({begin})}}}}}};
}

Json tokenizer_json(std::span<const std::string> tokens, std::span<const std::string> special) {
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", PieceSplitter::expression_of(PieceSplitter::Rule::llama3)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"post_processor", post_processor(tokens.size(), special[0])},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", true},
            {"vocab", vocabulary_of(tokens, special)},
            {"merges", tiktoken_merges(tokens)}}}};
}

void write_hugging_face_folder(const std::filesystem::path& folder, std::span<const std::string> tokens,
                               std::span<const std::string> special) {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", special[0]},
                       {"eos_token", special[1]},
                       {"clean_up_tokenization_spaces", false},
                       {"split_special_tokens", true}};  // else transformers matches these two in text
  write_file_atomically(folder / kHuggingFaceFiles[0], tokenizer_json(tokens, special).dump(1) + "\n");
  write_file_atomically(folder / kHuggingFaceFiles[1], config.dump(2) + "\n");
}

void check_size(int64_t size) {
  constexpr int64_t kLeast = 256 + TiktokenTokenizer::kSpecialTokens, kMost = std::numeric_limits<int32_t>::max();
  if (size >= kLeast && size <= kMost) return;
  throw Error(ExitCode::bad_config,
              size < kLeast ? fmt::format("a vocabulary of {} is too small: 256 bytes and 256 special tokens make {}. "
                                          "Ask for at least that with --vocab-size.",
                                          size, kLeast)
                            : fmt::format("a vocabulary of {} is too large: ids go up to {}. Ask for less with "
                                          "--vocab-size.",
                                          with_thousands(size), with_thousands(kMost)));
}

}  // namespace

TokenizerTrainer::TokenizerTrainer(int64_t vocabulary_size)
    : vocabulary_size_(vocabulary_size), bpe_(std::make_unique<BpeTrainer>()) {
  check_size(vocabulary_size);
}

TokenizerTrainer::~TokenizerTrainer() = default;

void TokenizerTrainer::add(std::string_view text) { bpe_->add(text); }
int64_t TokenizerTrainer::text_bytes() const { return bpe_->text_bytes(); }
int64_t TokenizerTrainer::distinct_pieces() const { return bpe_->distinct_pieces(); }

int64_t TokenizerTrainer::write(const std::filesystem::path& model, const std::filesystem::path& hugging_face) const {
  const std::vector<std::string> tokens = bpe_->train(vocabulary_size_ - TiktokenTokenizer::kSpecialTokens);
  write_tiktoken_file(model, tokens);
  if (!hugging_face.empty()) {
    std::vector<std::string> special;
    for (int32_t i = 0; i < TiktokenTokenizer::kSpecialTokens; ++i) {
      special.push_back(TiktokenTokenizer::special_name(i));
    }
    write_hugging_face_folder(hugging_face, tokens, special);
  }
  return std::ssize(tokens);
}

}  // namespace titan
