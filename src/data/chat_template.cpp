#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "added_tokens.h"
#include "json_node.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/data/chat.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// What Llama 3.1's template writes without another date. Llama 3.2's writes the present day, which would make the ids
/// depend on the day; this is what it falls back on.
constexpr std::string_view kLlama31Dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::bad_config, what); }

/// Python's str.strip, which Jinja's trim is.
std::string_view stripped(std::string_view text) {
  const auto is_space = [&](size_t at) {
    const char32_t c = first_code_point(text.substr(at));
    return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
  };
  while (!text.empty() && is_space(0)) text.remove_prefix(utf8_length(static_cast<unsigned char>(text[0])));
  while (!text.empty()) {
    const size_t last = previous_character(text, text.size());
    if (!is_space(last)) break;
    text = text.substr(0, last);
  }
  return text;
}

/// The Jinja template in a tokenizer's folder; empty where there is none.
std::string template_source(const fs::path& tokenizer) {
  const fs::path folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  if (fs::is_regular_file(folder / "chat_template.jinja")) {
    return read_file(folder / "chat_template.jinja", ExitCode::bad_data);
  }
  const fs::path config = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(config)) return {};
  const nlohmann::json json = read_json_file(config);
  const std::optional<JsonNode> field = JsonNode(json, config).find("chat_template");
  if (!field) return {};
  if (!field->value().is_array()) return field->text();
  for (size_t i = 0; i < field->size(); ++i) {  // several, by name
    if (field->at(i).text("name") == "default") return field->at(i).text("template");
  }
  return {};
}

/// The text that a ChatML template gives a conversation without a system message: a Jinja literal.
std::optional<std::string> default_system_text(std::string_view source) {
  constexpr std::string_view kBegin = "<|im_start|>system", kEnd = "<|im_end|>";
  for (size_t at = source.find(kBegin); at != source.npos; at = source.find(kBegin, at + 1)) {
    const char quote = at > 0 ? source[at - 1] : '\0';
    std::string_view rest = source.substr(at + kBegin.size());
    if (rest.starts_with("\\n")) rest.remove_prefix(1);
    rest.remove_prefix(std::min<size_t>(1, rest.size()));
    std::string text;
    while (!rest.empty() && rest[0] != quote && !rest.starts_with(kEnd)) {
      const bool escaped = rest[0] == '\\' && rest.size() > 1;
      if (escaped) rest.remove_prefix(1);
      text.push_back(escaped && rest[0] == 'n' ? '\n' : rest[0]);
      rest.remove_prefix(1);
    }
    if (rest.starts_with(kEnd) && !text.empty()) return text;
  }
  return std::nullopt;
}

struct Recognised {
  std::string name;
  std::optional<std::string> system;
};

/// By marks that other templates lack. A ChatML template that does more than frame messages is none of these.
std::optional<Recognised> recognise(const std::string& source) {
  const auto has = [&](const char* mark) { return source.find(mark) != source.npos; };
  if (has("<|start_header_id|>") && has("<|eot_id|>")) {
    return Recognised{has("Cutting Knowledge Date") ? "llama3_1" : "llama3", {}};
  }
  if (has("[INST]") && has("<<SYS>>")) return Recognised{"llama2", {}};
  const bool changes_text = has("<think>") || has("trim") || has("strip(") || has("bos_token") || has("eos_token");
  if (has("<|im_start|>") && has("<|im_end|>") && !changes_text) {
    return Recognised{"chatml", default_system_text(source)};
  }
  return std::nullopt;
}

Recognised recognise_in(const fs::path& tokenizer) {
  const std::string source = template_source(tokenizer);
  std::optional<Recognised> found = recognise(source);
  if (found) return *found;
  const std::vector<std::string> names = chat_template_names();
  refuse(fmt::format("tokenizer {}: {}. Set data.chat_template to one of {}.", tokenizer.string(),
                     source.empty() ? "there is no chat_template in a tokenizer_config.json or chat_template.jinja"
                                    : "its chat template is none of those that are recognised",
                     join(std::span(names).subspan(1), ", ")));
}

/// Texts of the form <|…|> in `text`, which are meant as special tokens.
std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find("<|"); at != text.npos; at = text.find("<|", at + 1)) {
    const size_t end = text.find("|>", at);
    if (end == text.npos) break;
    const std::string name = text.substr(at, end + 2 - at);
    if (name.find_first_of(" \n") == name.npos) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> chat_template_names() { return {"auto", "llama3", "llama3_1", "llama2", "chatml", "custom"}; }

struct ChatTemplate::Form {
  using Role = ChatTemplateOptions::Role;

  explicit Form(const Tokenizer& tokenizer) : special(tokens_of(tokenizer)) {}

  const Role& role(const std::string& name) const {
    return name == "system" ? system : name == "assistant" ? assistant : user;
  }

  std::string begin = {};
  Role system = {}, user = {}, assistant = {};
  bool trims = false;
  bool alternates = false;                         // Llama 2: the system message is part of the user's first
  std::optional<std::string> default_system = {};  // of a conversation without a system message
  std::string_view before_first_system = {};
  AddedTokenFinder special;

 private:
  static std::vector<AddedToken> tokens_of(const Tokenizer& tokenizer) {
    std::vector<AddedToken> tokens;
    for (auto& [name, id] : tokenizer.special_tokens()) {
      tokens.emplace_back();
      tokens.back().content = name;
      tokens.back().id = id;
    }
    return tokens;
  }
};

struct ChatTemplate::Piece {
  std::string text;
  int32_t id = Tokenizer::kNoId;  // of a special token
  bool counts = false;
};

ChatTemplate::ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer)
    : name_(options.name), tokenizer_(std::move(tokenizer)), all_count_(options.all_count) {
  auto form = std::make_unique<Form>(*tokenizer_);
  if (name_ == "auto") {
    Recognised found = recognise_in(options.tokenizer);
    name_ = found.name;
    form->default_system = std::move(found.system);
  }
  const auto token = [&](int32_t id, const char* what) {
    if (id != Tokenizer::kNoId) return tokenizer_->token_name(id);
    refuse(
        fmt::format("the chat template {} needs {} token, and the tokenizer ({}) has none. Choose another "
                    "data.chat_template, or another tokenizer in model.tokenizer_path.",
                    name_, what, tokenizer_->description()));
  };
  const auto framed = [&](const std::string& before, const std::string& after, const std::string& end) {
    form->system = {before + "system" + after, end};
    form->user = {before + "user" + after, end};
    form->assistant = {before + "assistant" + after, end};
  };
  if (name_ == "llama3" || name_ == "llama3_1") {
    form->begin = token(tokenizer_->bos_id(), "a begin-of-text");
    framed("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>");
    form->trims = true;
    if (name_ == "llama3_1") {
      form->default_system = "";
      form->before_first_system = kLlama31Dates;
    }
  } else if (name_ == "llama2") {
    form->user = {token(tokenizer_->bos_id(), "a begin-of-text") + "[INST] ", " [/INST]"};
    form->assistant = {"", token(tokenizer_->eos_id(), "an end-of-text")};
    form->trims = form->alternates = true;
  } else if (name_ == "chatml") {
    framed("<|im_start|>", "\n", "<|im_end|>\n");
  } else if (name_ == "custom") {
    form->begin = options.begin;
    form->system = options.system;
    form->user = options.user;
    form->assistant = options.assistant;
    if (form->assistant.suffix.empty()) {
      refuse("a custom chat template needs a text that ends the assistant's turn. Set data.chat.assistant_suffix.");
    }
  } else {
    refuse(fmt::format("there is no chat template {}. There are: {}.", name_, join(chat_template_names(), ", ")));
  }
  form_ = std::move(form);
  check_special_tokens();
  find_stops();
}

ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::check_special_tokens() const {
  const auto tokens = tokenizer_->special_tokens();
  std::vector<std::string> missing;
  const Form& form = *form_;
  for (const std::string* text : {&form.begin, &form.system.prefix, &form.system.suffix, &form.user.prefix,
                                  &form.user.suffix, &form.assistant.prefix, &form.assistant.suffix}) {
    for (const std::string& name : names_in(*text)) {
      const bool known =
          std::any_of(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == name; });
      if (!known && std::find(missing.begin(), missing.end(), name) == missing.end()) missing.push_back(name);
    }
  }
  if (missing.empty()) return;
  refuse(
      fmt::format("the chat template {} needs {} as special tokens, which the tokenizer ({}) does not have. Choose "
                  "another data.chat_template, or another tokenizer in model.tokenizer_path.",
                  name_, join(missing, ", "), tokenizer_->description()));
}

void ChatTemplate::find_stops() {
  std::vector<AddedTokenFinder::Part> parts;
  form_->special.split(form_->assistant.suffix, parts);
  const auto token = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.token != nullptr; });
  if (token == parts.end()) {
    stop_text_ = form_->assistant.suffix;
  } else {
    stop_ids_.push_back(token->token->id);
  }
  const int32_t eos = tokenizer_->eos_id();
  if (eos != Tokenizer::kNoId && (stop_ids_.empty() || stop_ids_[0] != eos)) stop_ids_.push_back(eos);
}

std::string ChatTemplate::problem(const std::vector<ChatMessage>& messages, bool is_prompt) const {
  if (messages.empty()) return "this conversation has no messages";
  bool answered = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return fmt::format("message {} has the role \"{}\"; roles are system, user and assistant", i + 1, role);
    }
    answered = answered || role == "assistant";
    if (!form_->alternates || (i == 0 && role == "system")) continue;
    const char* expected = (i - (messages[0].role == "system" ? 1 : 0)) % 2 == 0 ? "user" : "assistant";
    if (role != expected) {
      return fmt::format(
          "message {} is of the {}; in the chat template {} a conversation is a system message or none, "
          "then user and assistant in turn",
          i + 1, role, name_);
    }
  }
  if (is_prompt) return messages.back().role == "user" ? "" : "the last message is not of the user";
  return answered ? "" : "this conversation has no turn of the assistant";
}

/// The messages with what a template does to them before it frames them.
std::vector<ChatMessage> ChatTemplate::prepared(const std::vector<ChatMessage>& messages) const {
  std::vector<ChatMessage> all = messages;
  if (form_->default_system && all[0].role != "system") all.insert(all.begin(), {"system", *form_->default_system});
  if (form_->alternates && all[0].role == "system" && all.size() > 1) {
    all[1].content = "<<SYS>>\n" + all[0].content + "\n<</SYS>>\n\n" + all[1].content;
    all.erase(all.begin());
  }
  for (ChatMessage& message : all) {
    if (form_->trims) message.content = stripped(message.content);
    if (form_->alternates && message.role == "assistant") message.content = " " + message.content + " ";
  }
  if (all[0].role == "system") all[0].content.insert(0, form_->before_first_system);
  return all;
}

std::vector<ChatTemplate::Piece> ChatTemplate::pieces_of(const std::vector<ChatMessage>& messages,
                                                         bool generate) const {
  std::vector<Piece> pieces;
  const auto add = [&](std::string_view text, bool counts) {
    std::vector<AddedTokenFinder::Part> parts;
    form_->special.split(text, parts);
    for (const AddedTokenFinder::Part& part : parts) {
      pieces.push_back({std::string(part.text), part.token ? part.token->id : Tokenizer::kNoId, counts});
      if (part.token) counts = false;  // what follows the token that ends a turn is not the assistant's
    }
  };
  add(form_->begin, false);
  for (const ChatMessage& message : prepared(messages)) {
    const bool counts = message.role == "assistant";
    const ChatTemplateOptions::Role& role = form_->role(message.role);
    add(role.prefix, false);
    pieces.push_back({message.content, Tokenizer::kNoId, counts});
    add(role.suffix, counts);
  }
  if (generate) add(form_->assistant.prefix, false);
  return pieces;
}

/// Text between two special tokens is encoded as a whole. An id that has characters on both sides of where the
/// assistant's begin or end counts.
void ChatTemplate::encode_text(const Piece* begin, const Piece* end, EncodedChat& chat) const {
  std::string text;
  for (const Piece* piece = begin; piece != end; ++piece) text += piece->text;
  if (text.empty()) return;
  const size_t first = chat.ids.size();
  tokenizer_->encode_part(text, first == 0, chat.ids);
  chat.counts.resize(chat.ids.size(), 0);
  struct Cut {
    size_t ids;   // that end before it
    bool inside;  // of the id after those
  };
  const auto cut_at = [&](size_t offset) -> Cut {
    if (offset == text.size()) return {chat.ids.size(), false};
    std::vector<int32_t> before;
    tokenizer_->encode_part(std::string_view(text).substr(0, offset), first == 0, before);
    size_t same = 0;
    while (same < before.size() && first + same < chat.ids.size() && before[same] == chat.ids[first + same]) ++same;
    return {first + same, same < before.size()};
  };
  size_t offset = 0;
  for (const Piece* piece = begin; piece != end; ++piece) {
    const size_t from = offset;
    offset += piece->text.size();
    if (!piece->counts || piece->text.empty()) continue;
    const Cut last = cut_at(offset);
    const size_t stop = std::min(last.ids + (last.inside ? 1 : 0), chat.ids.size());
    for (size_t id = cut_at(from).ids; id < stop; ++id) chat.counts[id] = 1;
  }
}

EncodedChat ChatTemplate::encode_pieces(const std::vector<Piece>& pieces) const {
  EncodedChat chat;
  const Piece* const end = pieces.data() + pieces.size();
  for (const Piece* piece = pieces.data(); piece != end;) {
    const auto is_token = [](const Piece& one) { return one.id != Tokenizer::kNoId; };
    const Piece* const token = std::find_if(piece, end, is_token);
    encode_text(piece, token, chat);
    piece = token;
    if (token == end) break;
    chat.ids.push_back(token->id);
    chat.counts.push_back(token->counts ? 1 : 0);
    ++piece;
  }
  if (all_count_) std::fill(chat.counts.begin(), chat.counts.end(), uint8_t{1});
  return chat;
}

EncodedChat ChatTemplate::encode(const std::vector<ChatMessage>& messages) const {
  return encode_pieces(pieces_of(messages, /*generate=*/false));
}

std::vector<int32_t> ChatTemplate::prompt(const std::vector<ChatMessage>& messages) const {
  return encode_pieces(pieces_of(messages, /*generate=*/true)).ids;
}

}  // namespace titan
