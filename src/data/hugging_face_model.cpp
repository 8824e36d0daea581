#include "hugging_face_tokenizer.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "pre_tokenizer.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/philox.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

constexpr std::string_view kDamaged = "The file may be damaged: get it again";

/// Rejects model settings that would change the ids.
void check_settings(const JsonNode& node) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    std::optional<JsonNode> field = node.find(key);
    if (field && !field->text().empty()) field->fail(fmt::format("{}.", kTokenizeOffline));
  }
  std::optional<JsonNode> dropout = node.find("dropout");
  if (dropout && !(dropout->value().is_number() && dropout->value().get<double>() == 0)) {
    dropout->fail("is set: ids would be random. Set it to null.");
  }
}

}  // namespace

HuggingFaceModel::HuggingFaceModel(const JsonNode& node, bool byte_level)
    : byte_level_(byte_level),
      byte_fallback_(node.flag("byte_fallback", false)),
      fuse_unknown_(node.flag("fuse_unk", false)),
      ignore_merges_(node.flag("ignore_merges", false)) {
  // Old files have no type: a model with merges is BPE.
  std::optional<JsonNode> type = node.find("type");
  if (type && type->text() != "BPE") node.fail(fmt::format("is of type {}, which {}.", type->text(), kTokenizeOffline));
  check_settings(node);
  read_vocabulary(node.at("vocab"));
  read_merges(node.at("merges"));
  if (std::optional<JsonNode> unknown = node.find("unk_token")) {
    // Some files name an unknown token that is not in their vocabulary. It only matters when needed: treat it as none.
    if (std::optional<int32_t> id = id_of(unknown->text())) unknown_ = *id;
  }
  prepare();
}

HuggingFaceModel::HuggingFaceModel(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  const nlohmann::json json = read_json_file(vocabulary);
  read_vocabulary(JsonNode(json, vocabulary));
  const std::string text = read_file(merges, ExitCode::bad_data);
  refuse_kind(kind_of(text), merges, ExitCode::bad_data);
  int64_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    auto fail = [&](std::string_view what) {
      throw Error(ExitCode::bad_data, fmt::format("{}:{}: {}. {}.", merges.string(), line_number, what, kDamaged));
    };
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) {
      fail("this is not two tokens with a space between them");
    }
    add_merge(line.substr(0, space), line.substr(space + 1), fail);
  }
  prepare();
}

void HuggingFaceModel::read_vocabulary(const JsonNode& vocabulary) {
  if (!vocabulary.value().is_object()) vocabulary.fail(fmt::format("is not an object of tokens. {}.", kDamaged));
  if (vocabulary.value().empty()) vocabulary.fail(fmt::format("is empty. {}.", kDamaged));
  int64_t highest = 0;
  for (const auto& [token, id] : vocabulary.value().items()) {
    const bool good = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMostIds;
    if (!good) {
      vocabulary.fail(
          fmt::format("gives \"{}\" the id {}; ids are 0 to {}. {}.", token, id.dump(), kMostIds - 1, kDamaged));
    }
    highest = std::max(highest, id.get<int64_t>());
  }
  tokens_.resize(static_cast<size_t>(highest) + 1);
  std::vector<bool> taken(tokens_.size());
  ids_.reserve(vocabulary.value().size());
  for (const auto& [token, number] : vocabulary.value().items()) {
    const auto id = number.get<size_t>();
    if (taken[id]) {
      vocabulary.fail(fmt::format("gives the id {} to \"{}\" and \"{}\". {}.", id, tokens_[id], token, kDamaged));
    }
    taken[id] = true;
    tokens_[id] = token;
    ids_.emplace(token, static_cast<int32_t>(id));
  }
}

/// Each merge is "left right" or ["left", "right"].
void HuggingFaceModel::read_merges(const JsonNode& merges) {
  const size_t count = merges.size();
  merges_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& merge = merges.value()[i];
    auto fail = [&](std::string_view what) { merges.at(i).fail(fmt::format("{}. {}.", what, kDamaged)); };
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), fail);
      continue;
    }
    if (!merge.is_string()) fail("is neither a text nor a pair of texts");
    const std::string& line = merge.get_ref<const std::string&>();
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos)
      fail("is not two tokens with a space between them");
    add_merge(std::string_view(line).substr(0, space), std::string_view(line).substr(space + 1), fail);
  }
}

void HuggingFaceModel::add_merge(std::string_view left, std::string_view right,
                                 const std::function<void(std::string_view)>& fail) {
  Merge merge;
  merge.rank = static_cast<int32_t>(merges_.size());
  const std::string both = std::string(left) + std::string(right);
  for (auto [token, id] :
       {std::pair(left, &merge.left), std::pair(right, &merge.right), std::pair(std::string_view(both), &merge.id)}) {
    const std::optional<int32_t> found = id_of(token);
    if (!found) fail(fmt::format("merges to or from \"{}\", which the vocabulary lacks", token));
    *id = *found;
  }
  merges_.push_back(merge);
}

void HuggingFaceModel::prepare() {
  table_ = MergeTable(merges_);
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_[static_cast<size_t>(byte)] =
        id_of(byte_level_ ? to_byte_alphabet({&c, 1}) : fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  if (!ignore_merges_) return;
  for (const auto& [token, id] : ids_) {
    if (!byte_level_) {
      whole_.emplace(token, id);
    } else if (std::optional<std::string> bytes = from_byte_alphabet(token)) {
      whole_.emplace(std::move(*bytes), id);
    }
  }
}

std::optional<int32_t> HuggingFaceModel::id_of(std::string_view token) const {
  auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void HuggingFaceModel::encode_piece(std::string_view piece, std::vector<int32_t>& parts,
                                    std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (auto found = whole_.find(piece); found != whole_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  parts.clear();
  first_parts(piece, parts);
  parts.resize(table_.merge(parts));
  ids.insert(ids.end(), parts.begin(), parts.end());
}

/// Appends the ids of a character's bytes, if all bytes have one.
bool HuggingFaceModel::add_bytes(std::string_view unit, std::vector<int32_t>& parts) const {
  auto id_of_byte = [&](char c) { return byte_[static_cast<unsigned char>(c)]; };
  if (!std::all_of(unit.begin(), unit.end(), [&](char c) { return id_of_byte(c) >= 0; })) return false;
  for (char c : unit) parts.push_back(id_of_byte(c));
  return true;
}

/// One part per byte or character. Characters outside the vocabulary become the unknown token (one per run if the model
/// fuses them). The package writes it only before the next known part, after byte-fallback ids in between.
void HuggingFaceModel::first_parts(std::string_view piece, std::vector<int32_t>& parts) const {
  bool pending = false;
  auto flush = [&] {
    if (pending) parts.push_back(unknown_);
    pending = false;
  };
  for (size_t at = 0, length; at < piece.size(); at += length) {
    int32_t id = -1;
    if (byte_level_) {
      length = 1;
      id = byte_[static_cast<unsigned char>(piece[at])];
    } else {
      length = utf8_length(static_cast<unsigned char>(piece[at]));
      id = id_of(piece.substr(at, length)).value_or(-1);
    }
    if (id >= 0) {
      flush();
      parts.push_back(id);
    } else if (byte_fallback_ && !byte_level_ && add_bytes(piece.substr(at, length), parts)) {
      continue;
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) flush();
      pending = true;
    }
  }
  flush();
}

bool HuggingFaceModel::words_stand_alone(std::string_view mark) const {
  if (byte_level_ || ignore_merges_ || !byte_fallback_) return false;
  if (std::any_of(byte_.begin(), byte_.end(), [](int32_t id) { return id < 0; })) return false;
  return std::none_of(merges_.begin(), merges_.end(), [&](const Merge& merge) {
    return token(merge.right).starts_with(mark) && !token(merge.left).ends_with(mark);
  });
}

// Reads a Hugging Face tokenizer's files: tokenizer.json and the configs next to it.

namespace {

namespace fs = std::filesystem;

/// Ids that a post-processor adds around a text.
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
  if (type == "ByteLevel") return {};  // changes only offsets, which are not used here
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

/// A special token of a config: a string, or an object that contains it.
std::optional<std::string> special_name(const JsonNode& config, const std::string& key) {
  std::optional<JsonNode> field = config.find(key);
  if (!field) return std::nullopt;
  return field->value().is_object() ? field->text("content") : field->text();
}

/// The configs next to the tokenizer's file: they name the BOS and EOS tokens and may define more ids.
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
    if (!further->value().is_object()) further->fail("is not an object. The file may be damaged: get it again.");
    for (const auto& [key, token] : further->value().items()) {
      int32_t id = 0;
      auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (problem != std::errc() || end != key.data() + key.size() || id < 0 || id >= HuggingFaceModel::kMostIds) {
        further->fail(
            fmt::format("has the key \"{}\", which is not an id. The file may be damaged: get it again.", key));
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
          fmt::format("names the {} \"{}\", which is not a token of the vocabulary. Correct the name, or set it to "
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
  // Read these two before the model: for an unsupported kind of tokenizer their errors say the most.
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
