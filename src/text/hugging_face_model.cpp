#include "hugging_face_tokenizer.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "pre_tokenizer.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/text/utf8.h"

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
  // Files of old releases have no type; of the models that they may hold, only BPE has merges.
  std::optional<JsonNode> type = node.find("type");
  if (type && type->text() != "BPE") node.fail(fmt::format("is of type {}, which {}.", type->text(), kTokenizeOffline));
  check_settings(node);
  read_vocabulary(node.at("vocab"));
  read_merges(node.at("merges"));
  if (std::optional<JsonNode> unknown = node.find("unk_token")) {
    // Some files name an unknown token that is not in their vocabulary, which matters only to a text that needs it.
    if (std::optional<int32_t> id = id_of(unknown->text())) {
      unknown_ = *id;
    } else {
      missing_unknown_ = unknown->text();
      file_ = node.file().string();
    }
  }
  prepare();
  if (byte_level_ && byte_fallback_ && std::any_of(byte_.begin(), byte_.end(), [](int32_t id) { return id < 0; })) {
    node.fail(fmt::format("has byte_fallback beside ByteLevel and lacks tokens of single bytes, which {}.",
                          kTokenizeOffline));
  }
}

HuggingFaceModel::HuggingFaceModel(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  const nlohmann::json json = read_json_file(vocabulary);
  read_vocabulary(JsonNode(json, vocabulary));
  const std::string text = read_text_file(merges, ExitCode::bad_data);
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

/// The package fails here, too: leaving the character out would change the text without a word.
void HuggingFaceModel::refuse_unknown(std::string_view unit) const {
  const std::string text = byte_level_ ? to_byte_alphabet(unit) : std::string(unit);
  throw Error(
      ExitCode::bad_data,
      fmt::format("{}: the vocabulary lacks {} (U+{:04X}), which a text has, and the unk_token \"{}\", which would "
                  "stand for it. Add this token to model.vocab, or set model.unk_token to null, which leaves "
                  "such characters out",
                  file_, nlohmann::json(text).dump(), static_cast<uint32_t>(first_code_point(text)),
                  *missing_unknown_));
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
    } else if (missing_unknown_) {
      refuse_unknown(piece.substr(at, length));
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

}  // namespace titan
