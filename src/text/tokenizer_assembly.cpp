#include "tokenizer_assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "hugging_face_forms.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

std::unordered_set<std::string> names_in(const TokenizerSettings& settings) {
  std::unordered_set<std::string> names;
  for (const TokenizerSettings::Named& named : settings.named) names.insert(named.token.content);
  return names;
}

}  // namespace

TokenizerAssembly::TokenizerAssembly(const std::filesystem::path& path, TokenizerSettings settings,
                                     HuggingFaceParts parts)
    : path_(path),
      settings_(std::move(settings)),
      parts_(std::move(parts)),
      names_(names_in(settings_)),
      added_([this](const std::string& content) { return parts_.model.id_of(content); }, parts_.model.count()) {}

void TokenizerAssembly::put(const AddedToken& token) {
  const int32_t given = added_.add(token);
  if (given == token.id || token.content.empty()) return;
  notice_first(renumbered_, fmt::format("the file gives the token \"{}\" the id {}, which is not the next free one; it "
                                        "has the id {} here, as in transformers",
                                        token.content, token.id, given));
}

HuggingFaceParts TokenizerAssembly::finish(bool framed, uint64_t own) {
  const std::vector<AddedToken> before = added_.tokens();
  add_listed();
  add_named();
  if (settings_.reader == TokenizerSettings::Class::qwen2) add_again();
  parts_.added = added_.tokens();
  parts_.bos = id_of("bos_token");
  parts_.eos = id_of("eos_token");
  if (!framed) {
    if (settings_.add_bos && parts_.bos != Tokenizer::kNoId) parts_.before = {parts_.bos};
    if (settings_.add_eos && parts_.eos != Tokenizer::kNoId) parts_.after = {parts_.eos};
  }
  parts_.splits_special = settings_.split_special_tokens;
  parts_.most_ids = parts_.model.size();
  for (const AddedToken& token : parts_.added) parts_.most_ids = std::max(parts_.most_ids, token.id + 1);
  for (const std::vector<int32_t>* ids : {&parts_.before, &parts_.after}) {
    for (int32_t id : *ids) parts_.most_ids = std::max(parts_.most_ids, id + 1);
  }
  for (const TokenizerSettings::Named& named : settings_.named) {
    const bool is_here = added_.id_of(named.token.content).has_value();
    if (is_here) parts_.named.emplace_back(named.key, named.token.content);
  }
  count_noticed();
  parts_.notices = std::move(settings_.notices);
  std::string all = fmt::format("Hugging Face {} {}\n{}", parts_.bos, parts_.eos, own);
  const bool as_in_file = parts_.added == before && renumbered_.tokens == 0;
  if (!as_in_file || parts_.splits_special) all += described();
  parts_.fingerprint = name_key(all);
  return std::move(parts_);
}

void TokenizerAssembly::add_listed() {
  for (const auto& [id, token] : settings_.added) {
    const AddedToken* known = added_.find(token.content);
    AddedToken as_known = token;
    if (known) as_known.id = known->id;
    if (known && *known == as_known) continue;
    if (known && settings_.lists_added && !said_flags_) {
      said_flags_ = true;
      notice(
          fmt::format("tokenizer_config.json beside it gives the token \"{}\" other flags, which are used, as in "
                      "transformers",
                      token.content));
    }
    if (is_named(token)) as_known.make_special();
    const int32_t given = added_.add(as_known);
    if (given == id) continue;
    notice_first(other_ids_,
                 fmt::format("the files beside it give the token \"{}\" the id {}; it has the id {} here, as in "
                             "transformers",
                             token.content, id, given));
  }
}

void TokenizerAssembly::add_named() {
  std::vector<AddedToken> wanted;
  std::set<AddedToken> seen;
  const auto want = [&](const AddedToken& token) {
    if (seen.insert(token).second) wanted.push_back(token);
  };
  for (const TokenizerSettings::Named& named : settings_.named) {
    if (!named.by_default && path_.extension() == ".json" && path_.filename() != "vocab.json") check_known(named);
    want(named.token);
  }
  for (const AddedToken& token : settings_.extra) {
    // A model's own piece is added even if it equals a named token, whose flags another name may have changed.
    settings_.extra_of_model ? wanted.push_back(token) : want(token);
  }
  std::set<std::string> known;
  for (const AddedToken& token : added_.tokens()) known.insert(token.content);
  for (AddedToken token : wanted) {
    if (token.content.empty() || known.contains(token.content)) continue;
    if (is_named(token)) token.make_special();
    const bool is_new = !added_.id_of(token.content);
    const int32_t id = added_.add(token);
    if (is_new)
      notice_first(new_ids_,
                   fmt::format("the special token \"{}\" gets the new id {}, as in transformers", token.content, id));
  }
}

void TokenizerAssembly::check_known(const TokenizerSettings::Named& named) const {
  const bool begins_or_ends = named.key == "bos_token" || named.key == "eos_token";
  if (!begins_or_ends || added_.id_of(named.token.content)) return;
  refuse_tokenizer(path_,
                   fmt::format("a file beside it names the {} \"{}\", which is not a token of the vocabulary",
                               named.key, named.token.content),
                   "Correct the name, or set it to null for a tokenizer without one");
}

void TokenizerAssembly::add_again() {
  const auto plain = [this](const std::string& content) {
    AddedToken token;
    token.content = content;
    token.special = true;
    token.normalized = false;
    added_.add(std::move(token));
  };
  for (const TokenizerSettings::Named& named : settings_.named) plain(named.token.content);
  for (const AddedToken& token : settings_.extra) plain(token.content);
}

int32_t TokenizerAssembly::id_of(const std::string& key) const {
  const TokenizerSettings::Named* named = settings_.find(key);
  if (!named) return Tokenizer::kNoId;
  return added_.id_of(named->token.content).value_or(Tokenizer::kNoId);
}

void TokenizerAssembly::notice_first(Noticed& noticed, const std::string& what) {
  if (noticed.tokens++ > 0) return;
  notice(what);
  noticed.line = settings_.notices.size() - 1;
}

void TokenizerAssembly::count_noticed() {
  for (const Noticed& noticed : {renumbered_, other_ids_, new_ids_}) {
    if (noticed.tokens > 1)
      settings_.notices[noticed.line] += fmt::format(" (and {} others likewise)", noticed.tokens - 1);
  }
}

void TokenizerAssembly::notice(const std::string& what) {
  settings_.notices.push_back(fmt::format("tokenizer {}: {}", path_.string(), what));
}

std::string TokenizerAssembly::described() const {
  std::string all = parts_.splits_special ? "\nsplits special tokens" : "";
  for (const AddedToken& token : parts_.added) {
    all += fmt::format("\n{} {} {}{}{}{}{}", token.id, token.content, token.single_word, token.lstrip, token.rstrip,
                       token.normalized, token.special);
  }
  return all;
}

}  // namespace titan
