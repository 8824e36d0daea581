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

Json vocabulary_of(std::span<const std::string> tokens) {
  Json vocabulary = Json::object();
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    // Not operator[], which would look through all the keys before.
    vocabulary.get_ref<Json::object_t&>().emplace_back(to_byte_alphabet(tokens[rank]), rank);
  }
  return vocabulary;
}

Json added_tokens(size_t first, std::span<const std::string> special) {
  Json added = Json::array();
  for (size_t i = 0; i < special.size(); ++i) {
    added.push_back({{"id", first + i},
                     {"content", special[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
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
          {"added_tokens", added_tokens(tokens.size(), special)},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"post_processor", nullptr},
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
            {"vocab", vocabulary_of(tokens)},
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
                       {"clean_up_tokenization_spaces", false}};
  write_file_atomically(folder / "tokenizer.json", tokenizer_json(tokens, special).dump(1) + "\n");
  write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace titan
