#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "added_tokens.h"
#include "chat_control_tokens.h"
#include "chat_jinja.h"
#include "chat_marks.h"
#include "chat_template_source.h"
#include "chat_turns.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/text/chat.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Messages = std::vector<ChatMessage>;
using Variables = std::vector<ChatField>;

[[noreturn]] void refuse_config(const std::string& what) { throw Error(ExitCode::bad_config, what); }

std::vector<AddedToken> tokens_of(const Tokenizer& tokenizer) {
  std::vector<AddedToken> tokens;
  for (auto& [name, id] : tokenizer.special_tokens()) tokens.push_back({.content = name, .id = id});
  return tokens;
}

}  // namespace

std::vector<std::string> chat_template_names() { return {"auto", "llama3", "llama3_1", "llama2", "chatml", "custom"}; }

struct ChatTemplate::Form {
  Form(const ChatTemplateSource& source, std::shared_ptr<const Tokenizer> of, bool all)
      : name(source.name), jinja(source.text), special(tokens_of(*of)), tokenizer(std::move(of)), all_count(all) {
    for (auto& [name, token] : tokenizer->named_tokens()) names[name] = token;
  }

  jinja::Rendered run(const Messages& messages, bool generate, const Variables& variables = {}) const {
    return jinja.write(messages, generate, names, variables);
  }
  void find_how_samples_are_written();
  bool give_samples(const jinja::TemplateError& error);
  void find_how_contents_are_read();
  std::string find_texts();
  bool writes_texts() const;
  bool writes_parts(const std::set<std::string>& roles) const;
  ChatMessage sample(const std::string& role, const std::string& content) const;
  std::vector<WrittenChat> samples() const;
  std::vector<std::string> split_tokens(const std::vector<WrittenChat>& samples, bool ends_in_token) const;
  std::string misread_token(const std::vector<WrittenChat>& samples) const;
  std::string problem_of(const Messages& messages, bool generate, const Variables& variables,
                         const jinja::TemplateError& error) const;
  std::string about(size_t message, const Messages& messages, const char* what) const {
    return fmt::format("the chat template {} {} message {} (of the {})", name, what, message + 1,
                       messages[message].role);
  }
  WrittenChat write(Messages messages, bool generate, const Variables& variables = {}) const;
  /// Whether the template says itself what counts, with {% generation %}.
  bool uses_marks() const { return jinja.has_marks() && !all_count; }
  void count_marked(const WrittenChat& written, const std::vector<TokenStart>& starts, EncodedChat& chat) const;
  void encode_text(const WrittenChat& written, size_t begin, size_t end, EncodedChat& chat) const;
  EncodedChat encode(const WrittenChat& written) const;

  std::string name;
  jinja::Template jinja;
  AddedTokenFinder special;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool all_count;
  std::set<std::string> read_as_parts = {};  // roles whose content may be a list of parts
  bool takes_texts = true;                   // whether a content may be a text
  std::map<std::string, std::string> names = {};
  std::vector<ChatField> sample_fields = {};  // what the template needs of every message, with made-up values
  TurnTexts turn_texts = {};
};

ChatTemplate::ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer) {
  ChatTemplateSource source = chat_template_source(options);
  if (options.name != "auto") check_special_tokens(source, *tokenizer);
  const auto refuse = [&](const std::string& what) {
    refuse_config(fmt::format("the chat template {} {}. Set data.chat_template to another one of {}.", source.name,
                              what, chat_template_alternatives()));
  };
  const auto fail = [&](const std::string& what) {
    refuse(fmt::format("cannot be used with this tokenizer ({}): {}", tokenizer->description(), what));
  };
  try {
    form_ = std::make_unique<Form>(source, tokenizer, options.all_count);
    form_->find_how_samples_are_written();
    const std::string problem = form_->find_texts();
    if (!problem.empty()) fail(problem);
  } catch (const jinja::TemplateError& error) {
    // A name of the tokenizer's, such as bos_token, or one that the template expects elsewhere.
    if (error.undefined.empty() || error.undefined.ends_with("_token")) fail(error.what());
    refuse(fmt::format("cannot write a sample conversation of a user and an assistant, with role and content alone: {}",
                       error.what()));
  }
  std::vector<AddedTokenFinder::Part> parts;
  std::string& end = form_->turn_texts.turn_end;
  form_->special.split(end, parts);
  const auto token = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.token != nullptr; });
  if (options.name == "auto") {
    const std::vector<WrittenChat> samples = form_->samples();
    const std::vector<std::string> split = form_->split_tokens(samples, token != parts.end());
    if (!split.empty()) {
      fail(fmt::format("it writes {}, which the tokenizer splits into several ids", join(split, ", ")));
    }
    const std::string misread = form_->misread_token(samples);
    if (!misread.empty()) {
      fail(fmt::format(
          "by its flags single_word and normalized, transformers finds {} at other places of what it writes", misread));
    }
  }
  if (token == parts.end()) {
    stop_text_ = end;
  } else {
    stop_ids_.push_back(token->token->id);
    end.resize(static_cast<size_t>(token->text.data() - end.data()) + token->text.size());
    form_->turn_texts.ends_in_token = true;
  }
  const int32_t eos = tokenizer->eos_id();
  if (eos != Tokenizer::kNoId && (stop_ids_.empty() || stop_ids_[0] != eos)) stop_ids_.push_back(eos);
  name_ = std::move(source.name);
  source_ = std::move(source.text);
}

ChatTemplate::~ChatTemplate() = default;

/// Finds the form of a content, and the fields of a message, that the template needs. Throws TemplateError.
void ChatTemplate::Form::find_how_samples_are_written() {
  for (std::optional<jinja::TemplateError> first;;) {
    find_how_contents_are_read();
    const ChatMessage system = sample("system", "rule"), user = sample("user", "question"),
                      assistant = sample("assistant", "answer");
    try {
      for (const Messages& each : {Messages{user, assistant}, {system, user, assistant, user, assistant}}) {
        try {
          run(each, false);
        } catch (const jinja::TemplateError& error) {
          if (!error.raised) throw;
        }
      }
      return;
    } catch (const jinja::TemplateError& error) {
      if (!first) first.emplace(error);
      if (!give_samples(error)) throw *first;
    }
  }
}

/// Gives the samples a field that the template needs, which the records may have, or another value of the last one.
/// False: there is nothing left to try.
bool ChatTemplate::Form::give_samples(const jinja::TemplateError& error) {
  constexpr std::array<const char*, 4> kValues{"1", "\"x\"", "[]", "{}"};
  constexpr size_t kMostFields = 8;
  const auto is_it = [&](const ChatField& field) { return field.name == error.undefined; };
  if (std::any_of(sample_fields.begin(), sample_fields.end(), is_it)) return false;  // it is no field of a message
  if (!error.undefined.empty() && sample_fields.size() < kMostFields) {
    sample_fields.push_back({error.undefined, kValues[0]});
    return true;
  }
  if (error.kind != jinja::TemplateError::Kind::mistaken || sample_fields.empty()) return false;
  std::string& value = sample_fields.back().json;
  const auto next = std::find(kValues.begin(), kValues.end(), value) + 1;
  if (next == kValues.end()) return false;
  value = *next;
  return true;
}

/// Finds what the template writes around contents. Returns the problem with a sample, or an empty text.
std::string ChatTemplate::Form::find_texts() {
  const ChatMessage user = sample("user", "question"), assistant = sample("assistant", "answer");
  const WrittenChat whole = write({user, assistant}, false), prompt = write({user}, true), asked = write({user}, false);
  for (const WrittenChat* each : {&whole, &prompt}) {
    if (!each->problem.empty()) return each->problem;
  }
  turn_texts.turn_end = whole.template_text(whole.extents[1].last_run + 1);
  turn_texts.prompt_end = prompt.template_text(prompt.extents[0].last_run + 1);
  if (asked.problem.empty() && prompt.text.starts_with(asked.text)) {
    const std::string header = prompt.text.substr(asked.text.size());
    if (turn_texts.prompt_end.ends_with(header)) turn_texts.header = header;
  }
  return {};
}

/// `transformers` passes a list of parts to every template, and one that does not loop over them prints the list or
/// fails. Such a template gets the text of the parts. There are templates that read nothing but parts.
void ChatTemplate::Form::find_how_contents_are_read() {
  takes_texts = true;
  read_as_parts.clear();
  const std::set<std::string> both{"user", "assistant"}, all{"system", "user", "assistant"};
  for (const std::string& role : all) {
    if (writes_parts({role})) read_as_parts.insert(role);
  }
  const auto reads_all_as_parts = [&] { return read_as_parts.contains("user") && read_as_parts.contains("assistant"); };
  // A template that reads nothing but parts may have failed at the texts of the other roles.
  if (!reads_all_as_parts() && !writes_texts() && writes_parts(both)) read_as_parts = writes_parts(all) ? all : both;
  if (reads_all_as_parts()) takes_texts = writes_texts();
}

bool ChatTemplate::Form::writes_texts() const {
  try {
    const Messages messages{sample("user", "question"), sample("assistant", "answer")};
    return cut(run(messages, false), {false, false}).extents[0].found;
  } catch (const jinja::TemplateError& error) {
    return error.raised;
  }
}

bool ChatTemplate::Form::writes_parts(const std::set<std::string>& roles) const {
  Messages messages{sample("system", "rule"), sample("user", "question"), sample("assistant", "answer")};
  if (!roles.contains("system")) messages.erase(messages.begin());
  for (ChatMessage& message : messages) {
    if (roles.contains(message.role)) message.parts = {ChatPart{message.content}};
  }
  try {
    // A template that knows no parts prints the list of them, as Python writes it.
    return run(messages, false).output.text.find("{'type': 'text'") == std::string::npos;
  } catch (const jinja::TemplateError&) {
    return false;
  }
}

/// A message in a form that the template reads.
ChatMessage ChatTemplate::Form::sample(const std::string& role, const std::string& content) const {
  ChatMessage message{.role = role, .content = content, .fields = sample_fields};
  if (!takes_texts) message.parts = {ChatPart{content}};
  return message;
}

/// Conversations with and without a system message, as far as the template writes them.
std::vector<WrittenChat> ChatTemplate::Form::samples() const {
  const ChatMessage system = sample("system", "rule"), user = sample("user", "question"),
                    assistant = sample("assistant", "answer");
  std::vector<WrittenChat> samples;
  for (const Messages& each : {Messages{user, assistant}, {user, assistant, user}, {system, user, assistant}}) {
    WrittenChat written = write(each, /*generate=*/each.back().role == "user");
    if (written.problem.empty()) samples.push_back(std::move(written));
  }
  return samples;
}

/// The control tokens that the samples are written with and that are not one id.
std::vector<std::string> ChatTemplate::Form::split_tokens(const std::vector<WrittenChat>& samples,
                                                          bool ends_in_token) const {
  std::vector<std::string_view> texts;
  for (const WrittenChat& written : samples) {
    for (size_t i = 0; i < written.runs.size(); ++i) texts.push_back(written.template_text(i));
  }
  std::set<std::string> known;
  for (auto& [token, id] : tokenizer->special_tokens()) known.insert(token);
  const ControlNames written_names = control_names(texts);
  for (const std::set<std::string>* list : {&written_names.always, &written_names.maybe_text}) {
    for (const std::string& token : *list) {  // a piece of the vocabulary that is no special token may be one id, too
      std::vector<int32_t> ids;
      tokenizer->encode_part(token, /*at_start=*/false, ids);
      // A SentencePiece model puts a space before any text.
      if (!ids.empty() && tokenizer->decode(std::span(ids).last(1)) == token) known.insert(token);
    }
  }
  std::set<std::string> held;
  for (const auto& [variable, value] : names) held.insert(value);
  return split_control_tokens(texts, known, held, ends_in_token);
}

/// A token that is found here where the template writes its name, unlike in `transformers`; empty: none.
std::string ChatTemplate::Form::misread_token(const std::vector<WrittenChat>& samples) const {
  for (const WrittenChat& written : samples) {
    std::string misread = tokenizer->misread_token(written.text);
    if (!misread.empty()) return misread;
  }
  return {};
}

/// Finds the message that causes the template's error: the last one of the shortest prefix with the same error.
std::string ChatTemplate::Form::problem_of(const Messages& messages, bool generate, const Variables& variables,
                                           const jinja::TemplateError& error) const {
  if (!error.raised) return fmt::format("the chat template {} cannot write it: {}", name, error.what());
  for (size_t i = 0; i < messages.size(); ++i) {
    try {
      run({messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i) + 1}, generate, variables);
    } catch (const jinja::TemplateError& other) {
      if (other.what() == std::string_view(error.what())) {
        return fmt::format("{}: {}", about(i, messages, "refuses"), error.what());
      }
    }
  }
  return fmt::format("the chat template {} refuses it: {}", name, error.what());
}

WrittenChat ChatTemplate::Form::write(Messages messages, bool generate, const Variables& variables) const {
  // Blank content gets a stand-in character to make its position visible, unless the template tests for blank content.
  Messages marked;
  std::vector<bool> blank;
  for (ChatMessage& message : messages) {
    repair_utf8(message.content);
    if (!read_as_parts.contains(message.role)) message.parts.clear();
    marked.push_back(message);
    blank.push_back(strip_characters(message.content).empty());
    if (blank.back()) (message.parts.empty() ? marked.back().content : marked.back().parts.back().text) += kStandIn;
  }
  const auto is_decided = [](const ChatMessage& message) { return message.is_label.has_value(); };
  const bool needs_places = std::find(blank.begin(), blank.end(), true) != blank.end() &&
                            (!uses_marks() || std::any_of(messages.begin(), messages.end(), is_decided));
  WrittenChat written;
  try {
    const jinja::Rendered rendered = run(messages, generate, variables);
    written = cut(rendered, std::vector<bool>(messages.size()));
    if (needs_places) {
      WrittenChat placed = cut(run(marked, generate, variables), blank);
      placed.marks = written.marks;
      placed.read = written.read;
      if (placed.text == written.text) written = std::move(placed);
    }
    find_turns(rendered.iterations, written);
  } catch (const jinja::TemplateError& error) {
    written.problem = problem_of(messages, generate, variables, error);
    return written;
  }
  for (size_t i = 0; i < messages.size() && written.problem.empty(); ++i) {
    const size_t bytes = written.extents[i].bytes;
    if (bytes == 0 && !blank[i]) written.problem = about(i, messages, "leaves out");
    if (bytes > messages[i].content.size()) written.problem = about(i, messages, "repeats");
  }
  written.counts.assign(written.text.size(), all_count ? 1 : 0);
  const std::string unclear = mark_labels(messages, turn_texts, special, uses_marks(), written);
  if (!unclear.empty() && written.problem.empty()) {
    written.problem = fmt::format("the chat template {} {}", name, unclear);
  }
  return written;
}

/// Encodes the text between two special tokens as a whole. An id that crosses the start or end of the assistant's text
/// is a label.
void ChatTemplate::Form::encode_text(const WrittenChat& written, size_t begin, size_t end, EncodedChat& chat) const {
  if (begin == end) return;
  const std::string_view text = std::string_view(written.text).substr(begin, end - begin);
  const size_t first = chat.ids.size();
  tokenizer->encode_part(text, first == 0, chat.ids);
  chat.counts.resize(chat.ids.size(), 0);
  struct Cut {
    size_t ids;   // ids that end before the cut
    bool inside;  // whether the next id crosses the cut
  };
  const auto cut_at = [&](size_t offset) -> Cut {
    if (offset == text.size()) return {chat.ids.size(), false};
    std::vector<int32_t> before;
    tokenizer->encode_part(text.substr(0, offset), first == 0, before);
    size_t same = 0;
    while (same < before.size() && first + same < chat.ids.size() && before[same] == chat.ids[first + same]) ++same;
    return {first + same, same < before.size()};
  };
  const auto counts = written.counts.begin();
  const auto offset = [&](size_t at) { return counts + static_cast<std::ptrdiff_t>(at); };
  for (size_t at = begin; at < end;) {
    const auto from = std::find(offset(at), offset(end), uint8_t{1}), to = std::find(from, offset(end), uint8_t{0});
    at = static_cast<size_t>(to - counts);
    if (from == to) break;
    const Cut last = cut_at(at - begin);
    const size_t stop = std::min(last.ids + (last.inside ? 1 : 0), chat.ids.size());
    for (size_t id = cut_at(static_cast<size_t>(from - counts) - begin).ids; id < stop; ++id) chat.counts[id] = 1;
  }
}

/// The labels of `transformers`, and those of messages that say themselves that they count.
void ChatTemplate::Form::count_marked(const WrittenChat& written, const std::vector<TokenStart>& starts,
                                      EncodedChat& chat) const {
  std::fill(chat.counts.begin(), chat.counts.end(), uint8_t{0});
  set_marked(written.text, written.marks, token_spans(*tokenizer, written.text, chat.ids, starts), chat.counts);
  for (const auto& [begin, end] : written.added) {
    for (size_t i = 0; i < starts.size(); ++i) {
      if (starts[i].at >= begin && starts[i].at < end) chat.counts[i] = 1;
    }
  }
}

/// Only special tokens in the template's own text are encoded as such.
EncodedChat ChatTemplate::Form::encode(const WrittenChat& written) const {
  EncodedChat chat;
  chat.problem = written.problem;
  if (!chat.problem.empty()) return chat;
  chat.read = written.read;
  size_t begin = 0;
  std::vector<TokenStart> starts;
  bool has_starts = uses_marks();
  const auto encode_before = [&](size_t end) {
    const size_t first = chat.ids.size();
    encode_text(written, begin, end, chat);
    has_starts =
        has_starts && append_token_starts(*tokenizer, std::string_view(written.text).substr(begin, end - begin),
                                          std::span(chat.ids).subspan(first), begin, starts);
  };
  for (const WrittenChat::Run& run : written.runs) {
    if (run.from != 0) continue;
    std::vector<AddedTokenFinder::Part> parts;
    special.split(written.of(run), parts);
    for (const AddedTokenFinder::Part& part : parts) {
      if (!part.token) continue;
      const auto at = static_cast<size_t>(part.text.data() - written.text.data());
      encode_before(at);
      chat.ids.push_back(part.token->id);
      starts.push_back({at});
      chat.counts.push_back(written.counts[at]);
      begin = at + part.text.size();
    }
  }
  encode_before(written.text.size());
  if (has_starts) count_marked(written, starts, chat);
  return chat;
}

namespace {

std::string problem_of_roles(const Messages& messages) {
  if (messages.empty()) return "this conversation has no messages";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return fmt::format("message {} has the role \"{}\"; roles are system, user and assistant", i + 1, role);
    }
  }
  return {};
}

}  // namespace

EncodedChat ChatTemplate::encode(const Messages& messages, const Variables& variables) const {
  std::string problem = problem_of_roles(messages);
  const auto answers = [](const ChatMessage& message) { return message.role == "assistant"; };
  if (problem.empty() && std::none_of(messages.begin(), messages.end(), answers)) {
    problem = "this conversation has no turn of the assistant";
  }
  if (!problem.empty()) return {{}, {}, problem};
  return form_->encode(form_->write(messages, /*generate=*/false, variables));
}

bool ChatTemplate::mentions(std::string_view field) const {
  const auto in_a_word = [this](size_t at) {
    return at < source_.size() && (std::isalnum(static_cast<unsigned char>(source_[at])) || source_[at] == '_');
  };
  for (size_t at = source_.find(field); at != std::string::npos; at = source_.find(field, at + 1)) {
    if (!(at > 0 && in_a_word(at - 1)) && !in_a_word(at + field.size())) return true;
  }
  return false;
}

EncodedChat ChatTemplate::prompt(const Messages& messages) const {
  std::string problem = problem_of_roles(messages);
  if (problem.empty() && messages.back().role != "user") problem = "the last message is not of the user";
  return problem.empty() ? form_->encode(form_->write(messages, /*generate=*/true)) : EncodedChat{{}, {}, problem};
}

}  // namespace titan
