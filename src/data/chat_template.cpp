#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "added_tokens.h"
#include "chat_jinja.h"
#include "json_node.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/data/chat.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// What Llama 3.1's template writes without another date. Llama 3.2's writes the present day, which would make the ids
/// depend on the day; this is what it falls back on.
constexpr std::string_view kLlama31Dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::bad_config, what); }

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

/// What a template writes around and does to the messages.
struct Framing {
  using Role = ChatTemplateOptions::Role;
  using Messages = std::vector<ChatMessage>;

  /// One of the built-in templates; the texts of a tokenizer's own tokens are given.
  void become(const std::string& name, const std::string& bos, const std::string& eos) {
    if (name == "llama3" || name == "llama3_1") {
      begin = bos;
      frame("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>");
      trims = true;
      if (name == "llama3_1") {
        default_system = "";
        before_first_system = kLlama31Dates;
      }
    } else if (name == "llama2") {
      user = {bos + "[INST] ", " [/INST]"};
      assistant = {"", eos};
      trims = alternates = true;
    } else {
      frame("<|im_start|>", "\n", "<|im_end|>\n");
    }
  }

  const Role& role(const std::string& name) const {
    return name == "system" ? system : name == "assistant" ? assistant : user;
  }

  /// The role that message `i` would have to be of; empty: it is of one that it may be of.
  std::string_view expected_instead(const Messages& messages, size_t i) const {
    if (!alternates || (i == 0 && messages[0].role == "system")) return {};
    const char* expected = (i - (messages[0].role == "system" ? 1 : 0)) % 2 == 0 ? "user" : "assistant";
    return messages[i].role == expected ? "" : expected;
  }

  /// The messages with what a template does to them before it frames them.
  Messages prepared(const Messages& messages) const {
    Messages all = messages;
    if (default_system && all[0].role != "system") all.insert(all.begin(), {"system", *default_system});
    if (alternates && all[0].role == "system" && all.size() > 1) {
      all[1].content = "<<SYS>>\n" + all[0].content + "\n<</SYS>>\n\n" + all[1].content;
      all.erase(all.begin());
    }
    for (ChatMessage& message : all) {
      if (trims) message.content = strip_white_space(message.content);
      if (alternates && message.role == "assistant") message.content = " " + message.content + " ";
    }
    if (all[0].role == "system") all[0].content.insert(0, before_first_system);
    return all;
  }

  std::string written(const Messages& messages, bool generate) const {
    std::string text = begin;
    for (const ChatMessage& message : prepared(messages)) {
      text += role(message.role).prefix + message.content + role(message.role).suffix;
    }
    return generate ? text + assistant.prefix : text;
  }

  std::string begin = {};
  Role system = {}, user = {}, assistant = {};
  bool trims = false;
  bool alternates = false;                         // Llama 2: the system message is part of the user's first
  std::optional<std::string> default_system = {};  // of a conversation without a system message
  std::string_view before_first_system = {};

 private:
  void frame(const std::string& before, const std::string& after, const std::string& end) {
    system = {before + "system" + after, end};
    user = {before + "user" + after, end};
    assistant = {before + "assistant" + after, end};
  }
};

/// Every order of roles in up to five messages, with texts that differ and have something to strip.
std::vector<Framing::Messages> sample_conversations() {
  std::vector<Framing::Messages> all{{}};
  for (size_t i = 0; all[i].size() < 5; ++i) {
    for (const char* role : {"system", "user", "assistant"}) {
      all.push_back(all[i]);
      all.back().push_back({role, fmt::format(" \n\1{}\1\n ", all[i].size())});
    }
  }
  all.erase(all.begin());
  return all;
}

/// Whether a template writes every conversation that may be trained on, and every prompt, as this does.
bool writes_as(const ChatJinja& jinja, const Framing& framing) {
  for (const Framing::Messages& messages : sample_conversations()) {
    bool fits = true, answered = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      fits = fits && framing.expected_instead(messages, i).empty();
      answered = answered || messages[i].role == "assistant";
    }
    if (!fits) continue;
    if (answered && jinja.write(messages, false) != framing.written(messages, false)) return false;
    if (messages.back().role == "user" && jinja.write(messages, true) != framing.written(messages, true)) return false;
  }
  return true;
}

/// The text that a ChatML template gives a conversation without a system message. The published ones have the whole
/// turn in one literal.
std::optional<std::string> default_system_text(const ChatJinja& jinja, const Framing& chatml) {
  const Framing::Messages messages{{"user", "a"}, {"assistant", "b"}};
  const std::optional<std::string> written = jinja.write(messages, false);
  const std::string rest = chatml.written(messages, false);
  if (!written || !written->ends_with(rest)) return std::nullopt;
  std::string_view turn = std::string_view(*written).substr(0, written->size() - rest.size());
  const auto& [prefix, suffix] = chatml.system;
  if (!turn.starts_with(prefix) || !turn.ends_with(suffix) || !jinja.has_literal(turn)) return std::nullopt;
  turn.remove_prefix(prefix.size());
  return std::string(turn.substr(0, turn.size() - suffix.size()));
}

struct Recognised {
  std::string name;
  std::optional<std::string> system;
};

/// By what it writes: a template that differs from a built-in one for some conversation is none of them.
std::optional<Recognised> recognise(const std::string& source) {
  const std::optional<ChatJinja> jinja = ChatJinja::parse(source);
  if (!jinja) return std::nullopt;
  for (const char* name : {"llama3", "llama3_1", "llama2", "chatml"}) {
    Framing framing;
    framing.become(name, std::string(ChatJinja::kBos), std::string(ChatJinja::kEos));
    if (name == std::string_view("chatml")) framing.default_system = default_system_text(*jinja, framing);
    if (writes_as(*jinja, framing)) {
      const bool own_text = name == std::string_view("chatml");
      return Recognised{name, own_text ? framing.default_system : std::nullopt};
    }
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

struct ChatTemplate::Form : Framing {
  explicit Form(const Tokenizer& tokenizer) : special(tokens_of(tokenizer)) {}

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
  std::optional<std::string> system;
  if (name_ == "auto") {
    Recognised found = recognise_in(options.tokenizer);
    name_ = found.name;
    system = std::move(found.system);
  }
  const auto token = [&](int32_t id, const char* what) {
    if (id != Tokenizer::kNoId) return tokenizer_->token_name(id);
    refuse(
        fmt::format("the chat template {} needs {} token, and the tokenizer ({}) has none. Choose another "
                    "data.chat_template, or another tokenizer in model.tokenizer_path.",
                    name_, what, tokenizer_->description()));
  };
  const bool llama2 = name_ == "llama2", llama3 = name_ == "llama3" || name_ == "llama3_1";
  if (llama2 || llama3 || name_ == "chatml") {
    std::string bos, eos;
    if (name_ != "chatml") bos = token(tokenizer_->bos_id(), "a begin-of-text");
    if (llama2) eos = token(tokenizer_->eos_id(), "an end-of-text");
    form->become(name_, bos, eos);
    if (system) form->default_system = std::move(system);
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
    if (!form_->expected_instead(messages, i).empty()) {
      return fmt::format(
          "message {} is of the {}; in the chat template {} a conversation is a system message or none, "
          "then user and assistant in turn",
          i + 1, role, name_);
    }
  }
  if (is_prompt) return messages.back().role == "user" ? "" : "the last message is not of the user";
  return answered ? "" : "this conversation has no turn of the assistant";
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
  for (const ChatMessage& message : form_->prepared(messages)) {
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
