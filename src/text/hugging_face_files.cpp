// Reads the tokenizer of a Hugging Face folder: tokenizer.json, vocab.json with merges.txt, or a SentencePiece or
// tiktoken model, and the configs beside it. transformers turns all of them into the form of a tokenizer.json; so does
// this file.
#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "hugging_face_forms.h"
#include "hugging_face_tokenizer.h"
#include "pre_tokenizer.h"
#include "sentencepiece_model.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/philox.h"
#include "titan/text/utf8.h"
#include "tokenizer_assembly.h"
#include "tokenizer_settings.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Class = TokenizerSettings::Class;

/// Ids that a post-processor adds around a text, and the spaces that it trims from ids' spans.
struct Frame {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  Tokenizer::TrimmedSpaces trimmed = Tokenizer::TrimmedSpaces::none;
};

Tokenizer::TrimmedSpaces read_trimmed(const JsonNode& node) {
  using enum Tokenizer::TrimmedSpaces;
  if (!node.flag("trim_offsets", true)) return none;
  return node.flag("add_prefix_space", true) ? all_but_the_first : all;
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
    for (size_t k = 0; k < ids.size(); ++k) (texts == 0 ? frame.before : frame.after).push_back(token_id_in(ids.at(k)));
  }
  if (texts != 1) items.fail(fmt::format("holds the text A {} times. Give a template that holds it once.", texts));
  return frame;
}

Frame read_post_processor(const JsonNode& node) {
  const std::string type = node.text("type");
  if (type == "ByteLevel") return {{}, {}, read_trimmed(node)};
  if (type == "TemplateProcessing") return read_template(node);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    Frame frame{{token_id_in(node.at("cls").at(1))}, {token_id_in(node.at("sep").at(1))}};
    if (type == "RobertaProcessing") frame.trimmed = read_trimmed(node);
    return frame;
  }
  if (type != "Sequence") node.fail(fmt::format("is of type {}, which {}.", type, kTokenizeOffline));
  Frame all;
  const JsonNode processors = node.at("processors");
  for (size_t i = 0; i < processors.size(); ++i) {
    const Frame outer = read_post_processor(processors.at(i));
    all.before.insert(all.before.begin(), outer.before.begin(), outer.before.end());
    all.after.insert(all.after.end(), outer.after.begin(), outer.after.end());
    if (outer.trimmed != Tokenizer::TrimmedSpaces::none) all.trimmed = outer.trimmed;
  }
  return all;
}

/// The added tokens of a tokenizer.json, whose ids must agree with the vocabulary's.
std::vector<AddedToken> read_added_tokens(const JsonNode& file, const HuggingFaceModel& model) {
  std::vector<AddedToken> tokens;
  std::optional<JsonNode> list = file.find("added_tokens");
  for (size_t i = 0; list && i < list->size(); ++i) {
    const JsonNode node = list->at(i);
    AddedToken token = read_added_token(node);
    token.id = token_id_in(node.at("id"));
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

/// The parts of a file of the form of a tokenizer.json around `model`.
HuggingFaceParts parts_of(const JsonNode& file, HuggingFaceModel model, PreTokenizer pre_tokenizer,
                          HuggingFaceNormalizer normalizer) {
  HuggingFaceParts parts{.model = std::move(model),
                         .pre_tokenizer = std::move(pre_tokenizer),
                         .normalizer = std::move(normalizer),
                         .decoder = HuggingFaceDecoder(file.find("decoder")),
                         .added = {},
                         .before = {},
                         .after = {},
                         .named = {},
                         .notices = {}};
  Frame frame;
  if (std::optional<JsonNode> processor = file.find("post_processor")) frame = read_post_processor(*processor);
  parts.before = std::move(frame.before);
  parts.after = std::move(frame.after);
  parts.trimmed = frame.trimmed;
  return parts;
}

HuggingFaceParts parts_of(const JsonNode& file) {
  // Read these two before the model: for an unsupported kind of tokenizer their errors say the most.
  HuggingFaceNormalizer normalizer(file.find("normalizer"));
  PreTokenizer pre_tokenizer(file.find("pre_tokenizer"));
  const bool byte_level = pre_tokenizer.byte_level();
  return parts_of(file, HuggingFaceModel(file.at("model"), byte_level), std::move(pre_tokenizer),
                  std::move(normalizer));
}

/// Refuses a tokenizer that is not what transformers reads in its folder.
void check_is_read(const fs::path& path, const TokenizerSettings& settings) {
  if (settings.needs_code) {
    refuse_tokenizer(path,
                     fmt::format("tokenizer_config.json beside it names Python code of its own (auto_map, class {})",
                                 settings.class_name));
  }
  const std::string& newest = settings.newest_file;
  const bool is_other = newest != "tokenizer.json" && path.filename() != newest;
  if (is_other && (path.filename() == "tokenizer.json" || fs::exists(path.parent_path() / newest))) {
    refuse_tokenizer(
        path,
        fmt::format("tokenizer_config.json beside it has fast_tokenizer_files, by which transformers reads {} instead",
                    newest),
        "Rename that file to tokenizer.json, and remove fast_tokenizer_files from tokenizer_config.json");
  }
}

/// The tokenizer of a large vocabulary with the expression that `regex` says. `form`: what it is made of.
HuggingFaceParts with_mistral_regex(const fs::path& path, TokenizerSettings::MistralRegex regex, const json& form,
                                    HuggingFaceParts parts) {
  using enum TokenizerSettings::MistralRegex;
  constexpr size_t kLargeVocabulary = 100'000;  // the small ones are SentencePiece's and have no expression
  const auto pre_tokenizer = form.find("pre_tokenizer");
  if (regex == as_in_file || pre_tokenizer == form.end() || pre_tokenizer->is_null()) return parts;
  size_t tokens = parts.model.count();
  for (const AddedToken& token : parts.added) tokens += parts.model.id_of(token.content) ? 0 : 1;
  if (tokens <= kLargeVocabulary) return parts;
  if (regex == reported) {
    parts.notices.push_back(fmt::format(
        "tokenizer {}: by the config.json beside it this is a Mistral model's file of before transformers 5, which may "
        "split text wrongly (transformers warns, too); \"fix_mistral_regex\" in tokenizer_config.json decides: true "
        "corrects it, false keeps it",
        path.string()));
    return parts;
  }
  const json corrected = {{"pre_tokenizer", corrected_for_mistral(*pre_tokenizer)}};
  PreTokenizer replacement(JsonNode(corrected, path).find("pre_tokenizer"));
  if (replacement.byte_level() != parts.pre_tokenizer.byte_level()) {
    refuse_tokenizer(path,
                     "fix_mistral_regex is followed here only for a pre-tokenizer of an expression and ByteLevel");
  }
  parts.pre_tokenizer = std::move(replacement);
  parts.fingerprint = name_key(fmt::format("{} fix_mistral_regex", parts.fingerprint));
  return parts;
}

HuggingFaceParts read_vocabulary_and_merges(const fs::path& vocabulary) {
  const fs::path merges = vocabulary.parent_path() / "merges.txt";
  if (!fs::exists(merges)) {
    throw Error(ExitCode::bad_data,
                fmt::format("tokenizer {}: there is no merges.txt beside it. Add the file, if this is a byte-level BPE "
                            "tokenizer. A word-level tokenizer {}.",
                            vocabulary.string(), kTokenizeOffline));
  }
  TokenizerSettings settings = read_tokenizer_settings(vocabulary.parent_path(), std::nullopt);
  check_is_read(vocabulary, settings);
  if (settings.reader == Class::llama || settings.reader == Class::other) {
    refuse_tokenizer(vocabulary, fmt::format("the class {} is not read here from a vocab.json", settings.class_name));
  }
  const json form = form_of(settings.reader, settings);
  const JsonNode file(form, vocabulary);
  HuggingFaceParts parts =
      parts_of(file, HuggingFaceModel(vocabulary, merges), PreTokenizer(file.find("pre_tokenizer")),
               HuggingFaceNormalizer(file.find("normalizer")));
  const uint64_t own = name_key(fmt::format("{}\n{}\n{}", name_key(read_file(vocabulary, ExitCode::bad_data)),
                                            name_key(read_file(merges, ExitCode::bad_data)), form.dump()));
  const TokenizerSettings::MistralRegex regex = settings.mistral_regex;
  return with_mistral_regex(
      vocabulary, regex, form,
      TokenizerAssembly(vocabulary, std::move(settings), std::move(parts)).finish(/*framed=*/false, own));
}

/// Special tokens of a SentencePiece model, which transformers adds unless the configs name others.
void add_pieces(const fs::path& path, const SentencePieceModel& source, TokenizerSettings& settings) {
  if (settings.names_extra && !settings.former_extra) return;
  if (!settings.extra.empty()) {
    settings.notices.push_back(fmt::format(
        "tokenizer {}: additional_special_tokens of special_tokens_map.json beside it are not used; transformers reads "
        "it so, too",
        path.string()));
    settings.extra.clear();
  }
  settings.extra_of_model = true;
  for (const SentencePiece& piece : source.pieces) {
    const bool control = piece.type == SentencePiece::Type::control;
    // The model of the generic form matches user-defined pieces itself.
    const bool is_user_defined = piece.type == SentencePiece::Type::user_defined && settings.reader == Class::llama;
    if (!control && !is_user_defined) continue;
    AddedToken token;
    token.content = piece.text;
    token.special = control;
    token.normalized = false;
    settings.extra.push_back(std::move(token));
  }
}

}  // namespace

HuggingFaceParts read_hugging_face_tokenizer(const fs::path& path) {
  if (path.filename() == "vocab.json") return read_vocabulary_and_merges(path);
  json contents = read_json_file(path);
  const JsonNode file(contents, path);
  // "truncation" does not count: transformers sets it anew for each call.
  TokenizerSettings settings = read_tokenizer_settings(path.parent_path(), file);
  check_is_read(path, settings);
  uint64_t own = name_key(read_file(path, ExitCode::bad_data));
  if (settings.reader == Class::other) {
    settings.notices.push_back(fmt::format(
        "tokenizer {}: the class {} is not known here; the file is read as it is, without rules of the class",
        path.string(), settings.class_name));
  }
  const bool rebuilt = settings.reader != Class::backend && settings.reader != Class::other;
  if (rebuilt && file.at("model").find("merges")) {
    const json form = form_of(settings.reader, settings);
    json model = contents["model"];
    set_model_flags(settings.reader, model);
    for (const char* key : {"normalizer", "pre_tokenizer", "decoder"}) contents[key] = form.value(key, json());
    contents["model"] = std::move(model);
    own = name_key(fmt::format("{}\n{}", own, form.dump()));
  }
  HuggingFaceParts parts = parts_of(file);
  const std::vector<AddedToken> tokens = read_added_tokens(file, parts.model);
  const bool framed = file.find("post_processor").has_value();
  const TokenizerSettings::MistralRegex regex = settings.mistral_regex;
  TokenizerAssembly assembly(path, std::move(settings), std::move(parts));
  if (!rebuilt) {
    for (const AddedToken& token : tokens) assembly.put(token);
  }
  return with_mistral_regex(path, regex, contents, assembly.finish(framed, own));
}

std::optional<HuggingFaceParts> read_with_settings(const fs::path& path, const SentencePieceModel& model) {
  TokenizerSettings settings = read_tokenizer_settings(path.parent_path(), std::nullopt);
  if (!settings.any) return std::nullopt;
  check_is_read(path, settings);
  if (settings.reader != Class::llama && settings.reader != Class::backend) {
    refuse_tokenizer(path,
                     fmt::format("the class {} is not read here from a SentencePiece model", settings.class_name));
  }
  json form;
  if (settings.reader == Class::llama) {
    form = llama_form_of(model, settings);
  } else {
    form = generic_form_of(path, model, settings);
    if (model.add_dummy_prefix) {  // the text after an added token gets a space of its own
      for (auto& [id, token] : settings.added) token.normalized = false;
    }
    if (model.has_bos) settings.add_default("bos_token", model.bos_piece);
    if (model.has_eos) settings.add_default("eos_token", model.eos_piece);
    if (model.unknown_id >= 0) {
      settings.add_default("unk_token", model.pieces[static_cast<size_t>(model.unknown_id)].text);
    }
  }
  add_pieces(path, model, settings);
  const uint64_t own = name_key(fmt::format("{}\n{}", model.fingerprint, form["pre_tokenizer"].dump()));
  const TokenizerSettings::MistralRegex regex = settings.mistral_regex;
  TokenizerAssembly assembly(path, std::move(settings), parts_of(JsonNode(form, path)));
  return with_mistral_regex(path, regex, form, assembly.finish(/*framed=*/false, own));
}

std::optional<HuggingFaceParts> read_with_settings(const fs::path& path, const std::vector<std::string>& tokens) {
  TokenizerSettings settings = read_tokenizer_settings(path.parent_path(), std::nullopt);
  if (!settings.any) return std::nullopt;
  check_is_read(path, settings);
  if (settings.reader != Class::backend && settings.reader != Class::llama) {
    refuse_tokenizer(path, fmt::format("the class {} is not read here from a tiktoken file", settings.class_name));
  }
  settings.reader = Class::backend;
  for (std::string& notice : check_is_llama3(path, tokens)) settings.notices.push_back(std::move(notice));
  json form = byte_level_form(PieceSplitter::Rule::llama3, /*add_prefix_space=*/false);
  json vocabulary = json::object();
  for (size_t rank = 0; rank < tokens.size(); ++rank) vocabulary[to_byte_alphabet(tokens[rank])] = rank;
  form["model"] = {
      {"type", "BPE"}, {"ignore_merges", true}, {"vocab", std::move(vocabulary)}, {"merges", tiktoken_merges(tokens)}};
  TokenizerAssembly assembly(path, settings, parts_of(JsonNode(form, path)));
  const auto count = static_cast<int32_t>(tokens.size());
  int32_t last = settings.added.empty() ? -1 : settings.added.back().first;
  auto listed = settings.added.begin();
  for (int32_t id = count; id <= last; ++id) {  // a gap would shift all later ids, so ids without a name get one
    while (listed->first < id) ++listed;
    AddedToken token;
    token.content = listed->first != id ? fmt::format("<|reserved_token_{}|>", id) : listed->second.content;
    token.special = true;
    token.normalized = false;
    assembly.add(std::move(token));
  }
  if (!settings.former_extra) {
    for (const AddedToken& token : settings.extra) assembly.add(token);
  }
  return with_mistral_regex(path, settings.mistral_regex, form,
                            assembly.finish(/*framed=*/false, tiktoken_fingerprint(tokens)));
}

}  // namespace titan
