#include "titan/data/hugging_face_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/data/byte_alphabet.h"
#include "titan/data/piece_splitter.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

/// All ways to make a token of two others, tokens in the order of their ranks: a vocabulary alone, as tiktoken has it,
/// allows every one of them.
Json merges_of(std::span<const std::string> tokens) {
  std::unordered_map<std::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) ranks[tokens[rank]] = rank;
  Json merges = Json::array();
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

/// The special tokens are words of the vocabulary that no merge makes, and not added tokens: those would be looked for
/// in text, where a tiktoken model reads what looks like a special token as ordinary text.
Json vocabulary_of(std::span<const std::string> tokens, std::span<const std::string> special) {
  Json vocabulary = Json::object();
  auto add = [&](const std::string& token) {
    // Not operator[], which would look through all the keys before.
    vocabulary.get_ref<Json::object_t&>().emplace_back(to_byte_alphabet(token), vocabulary.size());
  };
  std::for_each(tokens.begin(), tokens.end(), add);
  std::for_each(special.begin(), special.end(), add);
  return vocabulary;
}

/// The begin-of-text token before every text, as Llama 3's own folder has it.
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
            {"merges", merges_of(tokens)}}}};
}

}  // namespace

void write_hugging_face_tokenizer(const std::filesystem::path& folder, std::span<const std::string> tokens,
                                  std::span<const std::string> special) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) {
    throw Error(ExitCode::storage,
                fmt::format("the tokenizer cannot be written: the folder {} cannot be made ({}). Name "
                            "one that can be with --hugging-face.",
                            folder.string(), problem.message()));
  }
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", special[0]},
                       {"eos_token", special[1]},
                       {"clean_up_tokenization_spaces", false},
                       {"split_special_tokens", true}};  // transformers adds those two to what is looked for
  write_file_atomically(folder / kHuggingFaceFiles[0], tokenizer_json(tokens, special).dump(1) + "\n");
  write_file_atomically(folder / kHuggingFaceFiles[1], config.dump(2) + "\n");
}

}  // namespace titan
