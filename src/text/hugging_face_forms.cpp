#include "hugging_face_forms.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "titan/base/error.h"
#include "titan/base/json.h"

namespace titan {

namespace fs = std::filesystem;
using nlohmann::json;
using Class = TokenizerSettings::Class;

void refuse_tokenizer(const fs::path& path, std::string_view what, std::string_view remedy) {
  throw Error(ExitCode::bad_data, fmt::format("tokenizer {}: {}. {}.", path.string(), what, remedy));
}

namespace {

json llama_form(const TokenizerSettings& settings) {
  const char* scheme = !settings.add_prefix_space ? "never" : settings.legacy.value_or(false) ? "always" : "first";
  json decoders = parse_json(R"([{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                  {"type": "ByteFallback"}, {"type": "Fuse"}])");
  if (settings.add_prefix_space) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}}};
}

}  // namespace

json byte_level_form(PieceSplitter::Rule rule, bool add_prefix_space) {
  const bool own_rule = rule == PieceSplitter::Rule::gpt2;
  json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", own_rule}};
  if (own_rule) return {{"pre_tokenizer", bytes}, {"decoder", {{"type", "ByteLevel"}}}};
  json split = {{"type", "Split"},
                {"pattern", {{"Regex", PieceSplitter::expression_of(rule)}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  return {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {std::move(split), std::move(bytes)}}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

json form_of(Class reader, const TokenizerSettings& settings) {
  if (reader == Class::llama) return llama_form(settings);
  const auto rule = reader == Class::qwen2 ? PieceSplitter::Rule::qwen2 : PieceSplitter::Rule::gpt2;
  json form = byte_level_form(rule, settings.add_prefix_space);
  if (reader == Class::qwen2 || reader == Class::gpt_neox) form["normalizer"] = {{"type", "NFC"}};
  return form;
}

json corrected_for_mistral(json pre_tokenizer) {
  const json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  if (pre_tokenizer.value("type", "") != "Sequence") {
    return {{"type", "Sequence"}, {"pretokenizers", json::array({split, std::move(pre_tokenizer)})}};
  }
  pre_tokenizer["pretokenizers"][0] = split;
  return pre_tokenizer;
}

void set_model_flags(Class reader, json& model) {
  const bool characters = reader == Class::llama;
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) model.erase(key);
  model["byte_fallback"] = characters;
  model["fuse_unk"] = characters;
  model["ignore_merges"] = false;
}

namespace {

/// All ways to form a piece of the vocabulary from two others, by the rank of the whole and the length of the first.
/// `parts`: the ids of what may be merged.
json merges_of(const std::vector<std::pair<std::string, int32_t>>& ordered,
               const std::unordered_map<std::string_view, int32_t>& parts) {
  std::set<size_t> lengths;
  for (const auto& [piece, id] : ordered) lengths.insert(piece.size());
  json merges = json::array();
  for (const auto& [piece, id] : ordered) {
    const std::string_view text = piece;
    for (size_t cut : lengths) {
      if (cut >= text.size()) break;
      if (!lengths.contains(text.size() - cut) || (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
      if (!parts.contains(text.substr(0, cut)) || !parts.contains(text.substr(cut))) continue;
      merges.push_back({text.substr(0, cut), text.substr(cut)});
    }
  }
  return merges;
}

/// The model of a tokenizer.json with the pieces of a SentencePiece model. `by_score`: only normal pieces are merged,
/// the best first, as SentencePiece does; else all of them by their ids.
json model_of(const SentencePieceModel& source, const std::vector<std::string>& names, bool by_score) {
  std::vector<std::pair<std::string, int32_t>> ordered;
  std::unordered_map<std::string_view, int32_t> parts;
  json vocabulary = json::object();
  for (size_t id = 0; id < names.size(); ++id) {
    vocabulary[names[id]] = id;
    if (by_score && source.pieces[id].type != SentencePiece::Type::normal) continue;
    ordered.emplace_back(names[id], static_cast<int32_t>(id));
    parts[names[id]] = static_cast<int32_t>(id);
  }
  if (by_score) {
    std::stable_sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) {
      return source.pieces[static_cast<size_t>(a.second)].score > source.pieces[static_cast<size_t>(b.second)].score;
    });
  }
  return {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", merges_of(ordered, parts)}};
}

std::vector<std::string> names_of(const SentencePieceModel& model) {
  std::vector<std::string> names;
  for (const SentencePiece& piece : model.pieces) names.push_back(piece.text);
  return names;
}

/// Placeholders get the names of the config, unless another piece keeps that name.
std::vector<std::string> names_by_config(const SentencePieceModel& source, const TokenizerSettings& settings) {
  std::vector<std::string> names = names_of(source);
  if (!settings.lists_added) return names;
  std::set<int32_t> renamed;
  for (const auto& [id, token] : settings.added) renamed.insert(id);
  std::set<std::string> kept;
  for (size_t id = 0; id < names.size(); ++id) {
    if (!renamed.contains(static_cast<int32_t>(id))) kept.insert(names[id]);
  }
  for (const auto& [id, token] : settings.added) {
    if (static_cast<size_t>(id) < names.size() && !kept.contains(token.content)) {
      names[static_cast<size_t>(id)] = token.content;
    }
  }
  return names;
}

/// Matches the user-defined pieces, the longest first; empty if there are none.
std::string user_defined_expression(const SentencePieceModel& source, const std::vector<std::string>& names) {
  std::vector<std::string> pieces;
  for (size_t id = 0; id < names.size(); ++id) {
    if (source.pieces[id].type == SentencePiece::Type::user_defined) pieces.push_back(names[id]);
  }
  const auto characters = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  };
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const auto& a, const auto& b) { return characters(a) > characters(b); });
  std::string all;
  for (const std::string& piece : pieces) {
    if (!all.empty()) all += '|';
    for (char c : piece) {
      if (std::string_view("\\.^$|?*+()[]{}").find(c) != std::string_view::npos) all += '\\';
      all += c;
    }
  }
  return all;
}

/// Spaces as SentencePiece changes them. With `legacy` the start of a text gets its mark even where it has one, which
/// Metaspace alone leaves out.
json generic_normalizer(const SentencePieceModel& source, bool legacy) {
  const auto replace = [](const char* kind, const char* from, const char* to) -> json {
    return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
  };
  json all = json::array();
  if (source.remove_extra_whitespaces) {
    all.push_back(replace("Regex", R"(\A +| +\z)", ""));
    all.push_back(replace("Regex", " {2,}", " "));
  }
  all.push_back(replace("String", " ", "▁"));
  if (source.add_dummy_prefix && legacy) all.push_back(replace("Regex", R"(\A▁)", "▁▁"));
  return {{"type", "Sequence"}, {"normalizers", std::move(all)}};
}

}  // namespace

json llama_form_of(const SentencePieceModel& source, const TokenizerSettings& settings) {
  json form = llama_form(settings);
  form["model"] = model_of(source, names_of(source), /*by_score=*/false);
  set_model_flags(Class::llama, form["model"]);
  return form;
}

json generic_form_of(const fs::path& path, const SentencePieceModel& source, const TokenizerSettings& settings) {
  if (source.kind != SentencePieceModel::Kind::bpe || !source.charsmap.empty() || source.whitespace_as_suffix ||
      !source.escape_whitespaces) {
    refuse_tokenizer(
        path, fmt::format("the class {} beside a SentencePiece model {} is not read here",
                          settings.class_name.empty() ? kGenericClass : settings.class_name,
                          source.kind != SentencePieceModel::Kind::bpe ? "that is not BPE" : "that normalises text"));
  }
  TokenizerSettings as_llama = settings;
  as_llama.add_prefix_space = source.add_dummy_prefix;
  as_llama.legacy = settings.legacy.value_or(true);
  json form = llama_form(as_llama);
  form["normalizer"] = generic_normalizer(source, *as_llama.legacy);
  const std::vector<std::string> names = names_by_config(source, settings);
  const std::string pieces = user_defined_expression(source, names);
  json members = json::array();
  if (source.add_dummy_prefix) members.push_back(std::move(form["pre_tokenizer"]));
  if (!pieces.empty()) {
    members.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pieces}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  form["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(members)}};
  form["model"] = model_of(source, names, /*by_score=*/true);
  form["model"]["byte_fallback"] = source.byte_fallback;
  form["model"]["fuse_unk"] = true;
  form["model"]["ignore_merges"] = !pieces.empty();
  if (source.unknown_id >= 0) form["model"]["unk_token"] = names[static_cast<size_t>(source.unknown_id)];
  return form;
}

}  // namespace titan
