#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "added_tokens.h"
#include "chat_control_tokens.h"
#include "chat_jinja.h"
#include "chat_marks.h"
#include "chat_template_source.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/text/chat.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Messages = std::vector<ChatMessage>;
using Variables = std::vector<ChatField>;

// Added to a message without text, whose place in what a template writes cannot be seen otherwise. A control character:
// templates strip white space, and compare texts with words.
constexpr char kStandIn = '\1';

[[noreturn]] void refuse_config(const std::string& what) { throw Error(ExitCode::bad_config, what); }

std::vector<AddedToken> tokens_of(const Tokenizer& tokenizer) {
  std::vector<AddedToken> tokens;
  for (auto& [name, id] : tokenizer.special_tokens()) tokens.push_back({.content = name, .id = id});
  return tokens;
}

/// A conversation rendered by the template.
struct Written {
  struct Run {
    size_t begin, end;  // bytes of `text`
    size_t from;        // origin, as in jinja::TracedText
  };
  struct Extent {
    size_t first_run = 0, last_run = 0, bytes = 0;
    bool found = false;
  };

  std::string_view of(const Run& run) const { return std::string_view(text).substr(run.begin, run.end - run.begin); }
  /// The template's own text in run `i`; empty if the run is a message's.
  std::string_view template_text(size_t i) const {
    return i < runs.size() && runs[i].from == 0 ? of(runs[i]) : std::string_view();
  }

  std::string text = {};
  std::vector<Run> runs = {};
  std::vector<Extent> extents = {};  // per message
  std::vector<uint8_t> counts = {};  // label mask, per byte
  std::vector<jinja::Rendered::Mark> marks = {};
  struct Decided {
    size_t begin, end;
    bool is_label;
  };
  std::vector<Decided> decided = {};  // turns whose messages say themselves whether they count
  std::string problem = {};
};

/// Splits the text into runs of one origin. Removes kStandIn, the extra character in the content of `blank` messages.
Written cut(const jinja::Rendered& rendered, const std::vector<bool>& blank) {
  const jinja::TracedText& traced = rendered.output;
  Written written;
  written.marks = rendered.marks;
  written.extents.resize(blank.size());
  size_t at = 0;
  for (const auto& [end, from] : traced.spans) {
    Written::Run run{written.text.size(), 0, from};
    written.text.append(traced.text, at, end - at);
    at = end;
    if (from > 0 && from <= blank.size()) {
      if (blank[from - 1] && written.text.ends_with(kStandIn)) written.text.pop_back();
      Written::Extent& extent = written.extents[from - 1];
      if (!extent.found) extent.first_run = written.runs.size();
      extent.found = true;
      extent.last_run = written.runs.size();
      extent.bytes += written.text.size() - run.begin;
    }
    run.end = written.text.size();
    written.runs.push_back(run);
  }
  return written;
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
  void find_how_contents_are_read();
  bool writes_parts(const std::string& role) const;
  ChatMessage sample(const std::string& role, const std::string& content) const;
  std::vector<Written> samples() const;
  std::vector<std::string> split_tokens(const std::vector<Written>& samples, bool ends_in_token) const;
  std::string misread_token(const std::vector<Written>& samples) const;
  std::string problem_of(const Messages& messages, bool generate, const Variables& variables,
                         const jinja::TemplateError& error) const;
  std::string about(size_t message, const Messages& messages, const char* what) const {
    return fmt::format("the chat template {} {} message {} (of the {})", name, what, message + 1,
                       messages[message].role);
  }
  Written write(Messages messages, bool generate, const Variables& variables = {}) const;
  std::pair<size_t, size_t> turn_of(size_t i, const Messages& messages, const Written& written) const;
  void mark_labels(const Messages& messages, Written& written) const;
  /// Whether the template says itself what counts, with {% generation %}.
  bool uses_marks() const { return jinja.has_marks() && !all_count; }
  void count_marked(const Written& written, const std::vector<TokenStart>& starts, EncodedChat& chat) const;
  void encode_text(const Written& written, size_t begin, size_t end, EncodedChat& chat) const;
  EncodedChat encode(const Written& written) const;

  std::string name;
  jinja::Template jinja;
  AddedTokenFinder special;
  std::shared_ptr<const Tokenizer> tokenizer;
  bool all_count;
  std::set<std::string> read_as_parts = {};  // roles whose content may be a list of parts
  bool takes_texts = true;                   // whether a content may be a text
  std::map<std::string, std::string> names = {};
  std::string prompt_end = {};  // what a prompt writes after the user's content
  std::string turn_end = {};    // label text after the content of the assistant
};

ChatTemplate::ChatTemplate(const ChatTemplateOptions& options, std::shared_ptr<const Tokenizer> tokenizer) {
  ChatTemplateSource source = chat_template_source(options);
  if (options.name != "auto") check_special_tokens(source, *tokenizer);
  const auto fail = [&](const std::string& what) {
    refuse_config(
        fmt::format("the chat template {} cannot be used with this tokenizer ({}): {}. Set data.chat_template to "
                    "another one of {}.",
                    source.name, tokenizer->description(), what, chat_template_alternatives()));
  };
  try {
    form_ = std::make_unique<Form>(source, tokenizer, options.all_count);
    form_->find_how_contents_are_read();
    const ChatMessage system = form_->sample("system", "rule"), user = form_->sample("user", "question"),
                      assistant = form_->sample("assistant", "answer");
    for (const Messages& sample : {Messages{user, assistant}, {system, user, assistant, user, assistant}}) {
      try {
        form_->run(sample, false);
      } catch (const jinja::TemplateError& error) {
        if (!error.raised) throw;
      }
    }
    const Written whole = form_->write({user, assistant}, false), prompt = form_->write({user}, true);
    for (const Written* each : {&whole, &prompt}) {
      if (!each->problem.empty()) fail(each->problem);
    }
    form_->prompt_end = prompt.template_text(prompt.extents[0].last_run + 1);
    form_->turn_end = whole.template_text(whole.extents[1].last_run + 1);
  } catch (const jinja::TemplateError& error) {
    fail(error.what());
  }
  std::vector<AddedTokenFinder::Part> parts;
  std::string& end = form_->turn_end;
  form_->special.split(end, parts);
  const auto token = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.token != nullptr; });
  if (options.name == "auto") {
    const std::vector<Written> samples = form_->samples();
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
  }
  const int32_t eos = tokenizer->eos_id();
  if (eos != Tokenizer::kNoId && (stop_ids_.empty() || stop_ids_[0] != eos)) stop_ids_.push_back(eos);
  name_ = std::move(source.name);
  source_ = std::move(source.text);
}

ChatTemplate::~ChatTemplate() = default;

/// `transformers` passes a list of parts to every template, and one that does not loop over them prints the list or
/// fails. Such a template gets the text of the parts. There are templates that read nothing but parts.
void ChatTemplate::Form::find_how_contents_are_read() {
  for (const char* role : {"system", "user", "assistant"}) {
    if (writes_parts(role)) read_as_parts.insert(role);
  }
  if (!read_as_parts.contains("user") || !read_as_parts.contains("assistant")) return;
  try {
    takes_texts = cut(run({{"user", "question"}, {"assistant", "answer"}}, false), {false, false}).extents[0].found;
  } catch (const jinja::TemplateError& error) {
    takes_texts = error.raised;
  }
}

bool ChatTemplate::Form::writes_parts(const std::string& role) const {
  Messages messages{{"system", "rule"}, {"user", "question"}, {"assistant", "answer"}};
  if (role != "system") messages.erase(messages.begin());
  for (ChatMessage& message : messages) {
    if (message.role == role) message.parts = {ChatPart{message.content}};
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
  ChatMessage message{role, content};
  if (!takes_texts) message.parts = {ChatPart{content}};
  return message;
}

/// Conversations with and without a system message, as far as the template writes them.
std::vector<Written> ChatTemplate::Form::samples() const {
  const ChatMessage system = sample("system", "rule"), user = sample("user", "question"),
                    assistant = sample("assistant", "answer");
  std::vector<Written> samples;
  for (const Messages& each : {Messages{user, assistant}, {user, assistant, user}, {system, user, assistant}}) {
    Written written = write(each, /*generate=*/each.back().role == "user");
    if (written.problem.empty()) samples.push_back(std::move(written));
  }
  return samples;
}

/// The control tokens that the samples are written with and that are not one id.
std::vector<std::string> ChatTemplate::Form::split_tokens(const std::vector<Written>& samples,
                                                          bool ends_in_token) const {
  std::vector<std::string_view> texts;
  for (const Written& written : samples) {
    for (size_t i = 0; i < written.runs.size(); ++i) texts.push_back(written.template_text(i));
  }
  std::set<std::string> known;
  for (auto& [token, id] : tokenizer->special_tokens()) known.insert(token);
  std::set<std::string> held;
  for (const auto& [variable, value] : names) held.insert(value);
  return split_control_tokens(texts, known, held, ends_in_token);
}

/// A token that is found here where the template writes its name, unlike in `transformers`; empty: none.
std::string ChatTemplate::Form::misread_token(const std::vector<Written>& samples) const {
  for (const Written& written : samples) {
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

Written ChatTemplate::Form::write(Messages messages, bool generate, const Variables& variables) const {
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
  const bool needs_places = !uses_marks() && std::find(blank.begin(), blank.end(), true) != blank.end();
  Written written;
  try {
    written = cut(run(messages, generate, variables), std::vector<bool>(messages.size()));
    if (needs_places) {
      Written placed = cut(run(marked, generate, variables), blank);
      if (placed.text == written.text) written = std::move(placed);
    }
  } catch (const jinja::TemplateError& error) {
    written.problem = problem_of(messages, generate, variables, error);
    return written;
  }
  for (size_t i = 0; i < messages.size() && written.problem.empty(); ++i) {
    const size_t bytes = written.extents[i].bytes;
    if (bytes == 0 && !blank[i]) written.problem = about(i, messages, "leaves out");
    if (bytes > messages[i].content.size()) written.problem = about(i, messages, "repeats");
  }
  mark_labels(messages, written);
  return written;
}

/// The bytes [first, second) of message `i`: of the assistant its turn, from the end of the prompt to the end of the
/// turn; of others their content. The extent of the message must be found.
std::pair<size_t, size_t> ChatTemplate::Form::turn_of(size_t i, const Messages& messages,
                                                      const Written& written) const {
  const Written::Extent& extent = written.extents[i];
  size_t begin = written.runs[extent.first_run].begin, end = written.runs[extent.last_run].end;
  if (messages[i].role != "assistant") return {begin, end};
  if (i > 0 && messages[i - 1].role == "user" && written.extents[i - 1].found) {
    // What stands between the prompt and the content, such as the assistant's reasoning, is a part of the turn.
    const size_t asked = written.runs[written.extents[i - 1].last_run].end;
    const bool prompted = std::string_view(written.text).substr(asked).starts_with(prompt_end);
    if (prompted && asked + prompt_end.size() <= begin) begin = asked + prompt_end.size();
  }
  if (written.template_text(extent.last_run + 1).starts_with(turn_end)) end += turn_end.size();
  return {begin, end};
}

void ChatTemplate::Form::mark_labels(const Messages& messages, Written& written) const {
  written.counts.assign(written.text.size(), all_count ? 1 : 0);
  const auto count = [&](size_t begin, size_t end, bool counts) {
    std::fill(written.counts.begin() + static_cast<std::ptrdiff_t>(begin),
              written.counts.begin() + static_cast<std::ptrdiff_t>(end), counts ? uint8_t{1} : uint8_t{0});
  };
  if (uses_marks()) {
    for (const auto& [begin, characters] : written.marks) {
      count(begin, advance_characters(written.text, begin, static_cast<int64_t>(characters)), true);
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_decided = messages[i].is_label.has_value();
    const bool counts = !uses_marks() && messages[i].role == "assistant";
    if (!written.extents[i].found || !(is_decided || counts)) continue;
    const auto [begin, end] = turn_of(i, messages, written);
    count(begin, end, messages[i].is_label.value_or(true));
    if (is_decided) written.decided.push_back({begin, end, *messages[i].is_label});
  }
}

/// Encodes the text between two special tokens as a whole. An id that crosses the start or end of the assistant's text
/// is a label.
void ChatTemplate::Form::encode_text(const Written& written, size_t begin, size_t end, EncodedChat& chat) const {
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

/// The labels of `transformers`, except for messages that say themselves whether they count.
void ChatTemplate::Form::count_marked(const Written& written, const std::vector<TokenStart>& starts,
                                      EncodedChat& chat) const {
  std::fill(chat.counts.begin(), chat.counts.end(), uint8_t{0});
  set_marked(written.text, written.marks, token_spans(*tokenizer, written.text, chat.ids, starts), chat.counts);
  for (const auto& [begin, end, is_label] : written.decided) {
    for (size_t i = 0; i < starts.size(); ++i) {
      if (starts[i].at >= begin && starts[i].at < end) chat.counts[i] = is_label ? 1 : 0;
    }
  }
}

/// Only special tokens in the template's own text are encoded as such.
EncodedChat ChatTemplate::Form::encode(const Written& written) const {
  EncodedChat chat;
  chat.problem = written.problem;
  if (!chat.problem.empty()) return chat;
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
  for (const Written::Run& run : written.runs) {
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
