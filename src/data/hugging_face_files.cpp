// Reads a Hugging Face tokenizer's files: what stands where in tokenizer.json and the configs beside it.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/data/hugging_face_tokenizer.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// Ids that a post-processor puts around a text.
struct Frame {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

int32_t id_in(const JsonNode& node) {
  const int64_t id = node.number();
  if (id < 0 || id >= HuggingFaceModel::kMostIds) {
    node.fail(fmt::format("is {}; ids are 0 to {}. The file may be damaged: get it again.", id,
                          HuggingFaceModel::kMostIds - 1));
  }
  return static_cast<int32_t>(id);
}

/// A template is a list of special tokens around one $A.
Frame read_template(const JsonNode& node) {
  Frame frame;
  int texts = 0;
  const JsonNode items = node.at("single");
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonNode item = items.at(i);
    if (std::optional<JsonNode> sequence = item.find("Sequence")) {
      if (sequence->text("id") != "A") sequence->fail("is not the text A. A template for one text has only that.");
      ++texts;
      continue;
    }
    const JsonNode ids = node.at("special_tokens").at(item.at("SpecialToken").text("id")).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) (texts == 0 ? frame.before : frame.after).push_back(id_in(ids.at(k)));
  }
  if (texts != 1) items.fail(fmt::format("holds the text A {} times. Give a template that holds it once.", texts));
  return frame;
}

Frame read_post_processor(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "ByteLevel") return {};  // moves offsets, which nobody asks for here
  if (type == "TemplateProcessing") return read_template(node);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {{id_in(node.at("cls").at(1))}, {id_in(node.at("sep").at(1))}};
  }
  if (type != "Sequence") node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  Frame all;
  const JsonNode processors = node.at("processors");
  for (size_t i = 0; i < processors.size(); ++i) {
    const Frame outer = read_post_processor(processors.at(i));
    all.before.insert(all.before.begin(), outer.before.begin(), outer.before.end());
    all.after.insert(all.after.end(), outer.after.begin(), outer.after.end());
  }
  return all;
}

std::vector<AddedToken> read_added_tokens(const JsonNode& file, const HuggingFaceModel& model) {
  std::vector<AddedToken> tokens;
  std::optional<JsonNode> list = file.find("added_tokens");
  for (size_t i = 0; list && i < list->size(); ++i) {
    const JsonNode node = list->at(i);
    AddedToken token;
    token.content = node.text("content");
    token.id = id_in(node.at("id"));
    token.special = node.flag("special", false);
    token.single_word = node.flag("single_word", false);
    token.lstrip = node.flag("lstrip", false);
    token.rstrip = node.flag("rstrip", false);
    token.normalized = node.flag("normalized", !token.special);
    const std::optional<int32_t> known = model.id_of(token.content);
    const bool taken = token.id < model.size() && !model.token(token.id).empty() && known != token.id;
    if ((known && *known != token.id) || taken) {
      node.fail(fmt::format(
          "gives \"{}\" the id {}, but the vocabulary {}. Make the two agree.", token.content, token.id,
          known ? fmt::format("gives it {}", *known) : fmt::format("gives that to \"{}\"", model.token(token.id))));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// A special token of a config: its text, or an object with it.
std::optional<std::string> special_name(const JsonNode& config, const std::string& key) {
  std::optional<JsonNode> field = config.find(key);
  if (!field) return std::nullopt;
  return field->value().is_object() ? field->text("content") : field->text();
}

/// The configs beside the tokenizer's file: they name the begin- and end-of-text tokens and may know further ids.
class Configs {
 public:
  explicit Configs(const fs::path& folder) {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (fs::is_regular_file(folder / name)) files_.emplace_back(folder / name, read_json_file(folder / name));
    }
  }

  void apply(HuggingFaceParts& parts) const {
    for (const auto& [path, json] : files_) read_further_ids(JsonNode(json, path), parts);
    parts.bos = id_of("bos_token", parts);
    parts.eos = id_of("eos_token", parts);
  }

 private:
  template <class Use>
  static void for_each_further_id(const JsonNode& config, const Use& use) {
    std::optional<JsonNode> further = config.find("added_tokens_decoder");
    if (!further) return;
    if (!further->value().is_object()) further->fail("is no object. The file may be damaged: get it again.");
    for (const auto& [key, token] : further->value().items()) {
      int32_t id = 0;
      auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (problem != std::errc() || end != key.data() + key.size() || id < 0 || id >= HuggingFaceModel::kMostIds) {
        further->fail(fmt::format("has the key \"{}\", which is no id. The file may be damaged: get it again.", key));
      }
      use(id, JsonNode(token, config.file(), fmt::format("added_tokens_decoder.{}", key)));
    }
  }

  static void read_further_ids(const JsonNode& config, HuggingFaceParts& parts) {
    for_each_further_id(config,
                        [&](int32_t id, const JsonNode&) { parts.most_ids = std::max(parts.most_ids, id + 1); });
  }

  int32_t id_of(const std::string& key, const HuggingFaceParts& parts) const {
    for (const auto& [path, json] : files_) {
      const JsonNode config(json, path);
      const std::optional<std::string> name = special_name(config, key);
      if (!name) continue;
      if (std::optional<int32_t> id = parts.model.id_of(*name)) return *id;
      for (const AddedToken& token : parts.added) {
        if (token.content == *name) return token.id;
      }
      int32_t found = Tokenizer::kNoId;
      for_each_further_id(config, [&](int32_t id, const JsonNode& token) {
        if (token.text("content") == *name) found = id;
      });
      if (found != Tokenizer::kNoId) return found;
      config.fail(
          fmt::format("names the {} \"{}\", which is no token of the vocabulary. Correct the name, or set it to "
                      "null for a tokenizer without one.",
                      key, *name));
    }
    return Tokenizer::kNoId;
  }

  std::vector<std::pair<fs::path, nlohmann::json>> files_;
};

uint64_t fingerprint_of(const HuggingFaceParts& parts, std::initializer_list<fs::path> files) {
  std::string all = fmt::format("Hugging Face {} {}", parts.bos, parts.eos);
  for (const fs::path& file : files) all += fmt::format("\n{}", name_key(read_file(file, ExitCode::bad_data)));
  return name_key(all);
}

HuggingFaceParts read_vocabulary_and_merges(const fs::path& vocabulary) {
  const fs::path merges = vocabulary.parent_path() / "merges.txt";
  if (!fs::is_regular_file(merges)) {
    throw Error(ExitCode::bad_data,
                fmt::format("tokenizer {}: there is no merges.txt beside it. Add the file, if this is a byte-level BPE "
                            "tokenizer. A word-level tokenizer {}.",
                            vocabulary.string(), kTokenizeOffline));
  }
  HuggingFaceParts parts{HuggingFaceModel(vocabulary, merges),
                         PreTokenizer::gpt2(),
                         HuggingFaceNormalizer(std::nullopt),
                         HuggingFaceDecoder::byte_level(),
                         {},
                         {},
                         {}};
  parts.most_ids = parts.model.size();
  Configs(vocabulary.parent_path()).apply(parts);
  parts.fingerprint = fingerprint_of(parts, {vocabulary, merges});
  return parts;
}

}  // namespace

HuggingFaceParts read_hugging_face_tokenizer(const fs::path& path) {
  if (path.filename() == "vocab.json") return read_vocabulary_and_merges(path);
  const nlohmann::json json = read_json_file(path);
  const JsonNode file(json, path);
  for (const char* key : {"truncation", "padding"}) {
    if (std::optional<JsonNode> field = file.find(key)) field->fail("is set: texts would be changed. Set it to null.");
  }
  // The normaliser and the pre-tokenizer first: a vocabulary of another kind is best refused by what it is made for.
  HuggingFaceNormalizer normalizer(file.find("normalizer"));
  PreTokenizer pre_tokenizer(file.find("pre_tokenizer"));
  const bool byte_level = pre_tokenizer.byte_level();
  HuggingFaceParts parts{HuggingFaceModel(file.at("model"), byte_level),
                         std::move(pre_tokenizer),
                         std::move(normalizer),
                         HuggingFaceDecoder(file.find("decoder")),
                         {},
                         {},
                         {}};
  parts.added = read_added_tokens(file, parts.model);
  Frame frame;
  if (std::optional<JsonNode> processor = file.find("post_processor")) frame = read_post_processor(*processor);
  parts.before = std::move(frame.before);
  parts.after = std::move(frame.after);
  parts.most_ids = parts.model.size();
  for (const AddedToken& token : parts.added) parts.most_ids = std::max(parts.most_ids, token.id + 1);
  for (const std::vector<int32_t>* ids : {&parts.before, &parts.after}) {
    for (int32_t id : *ids) parts.most_ids = std::max(parts.most_ids, id + 1);
  }
  Configs(path.parent_path()).apply(parts);
  parts.fingerprint = fingerprint_of(parts, {path});
  return parts;
}

}  // namespace titan
