// Reads the conversation in one record. What a record says is followed or refused by name: a field that nothing reads
// is reported unless it is known to be harmless.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "file_source.h"
#include "surrogate_escapes.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/text/chat.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Json = nlohmann::json;

/// Fields of published conversations that say where a record is from, not what is trained (docs/data.md lists them).
constexpr std::array<std::string_view, 64> kHarmless{"_id",
                                                     "avg_rating",
                                                     "categories",
                                                     "category",
                                                     "chat_id",
                                                     "cluster",
                                                     "conversation_hash",
                                                     "conversation_id",
                                                     "created",
                                                     "created_at",
                                                     "dataset",
                                                     "dataset_name",
                                                     "date",
                                                     "difficulty",
                                                     "domain",
                                                     "file",
                                                     "file_name",
                                                     "filename",
                                                     "generator",
                                                     "guid",
                                                     "hash",
                                                     "id",
                                                     "idx",
                                                     "index",
                                                     "lang",
                                                     "language",
                                                     "length",
                                                     "license",
                                                     "link",
                                                     "message_id",
                                                     "meta",
                                                     "metadata",
                                                     "model",
                                                     "model_name",
                                                     "n_tokens",
                                                     "num_tokens",
                                                     "num_turns",
                                                     "origin",
                                                     "parent_id",
                                                     "prompt_id",
                                                     "quality",
                                                     "rating",
                                                     "reward",
                                                     "score",
                                                     "scores",
                                                     "session_id",
                                                     "source",
                                                     "sources",
                                                     "split",
                                                     "subset",
                                                     "tag",
                                                     "tags",
                                                     "task",
                                                     "time",
                                                     "timestamp",
                                                     "title",
                                                     "token_count",
                                                     "topic",
                                                     "turn",
                                                     "turns",
                                                     "updated_at",
                                                     "url",
                                                     "uuid",
                                                     "version"};

bool is_harmless(const std::string& field) {
  return std::find(kHarmless.begin(), kHarmless.end(), field) != kHarmless.end();
}

/// True for null, "", [] and {}. A table whose records have several forms fills the columns that a record does not use
/// with such values.
bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  const bool answers = from == "gpt" || from == "chatgpt" || from == "bing" || from == "bard";
  return answers ? "assistant" : from;
}

struct Conversation {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatField> variables = {};
  std::vector<std::string> unused = {};
};

/// Why a record is bad, as the end of a sentence.
struct Problem {
  std::string what;
};

[[noreturn]] void refuse(std::string what) { throw Problem{std::move(what)}; }

class ConversationReader {
 public:
  /// `text`: of the record.
  ConversationReader(const ChatTemplate& chat, const std::vector<std::string>& ignored, std::string_view text)
      : chat_(chat), ignored_(ignored), text_(text) {}

  /// Throws Problem.
  Conversation read(Json record) {
    if (!record.is_object()) {
      refuse(
          fmt::format("this line is a JSON {}, not an object with the fields of a conversation", record.type_name()));
    }
    refuse_fields(record);
    if (has(record, "messages")) {
      add_list(take(record, "messages"), "messages", {});
    } else if (has(record, "conversations")) {
      add_list(take(record, "conversations"), "conversations", {});
    } else if (has(record, "prompt") && has_field(record, "completion")) {
      add_side(take(record, "prompt"), "prompt", "user");
      add_side(take(record, "completion"), "completion", "assistant");
    } else if (has(record, "instruction") && has_field(record, "output")) {
      add_instruction(record);
    } else {
      refuse_form(record);
    }
    add_system(record);
    add_variables(record);
    for (const auto& [name, value] : record.items()) note_unused(name, value, "");
    return std::move(read_);
  }

 private:
  static bool has_field(const Json& object, const char* name) {
    return object.contains(name) && !object[name].is_null();
  }
  static bool has(const Json& object, const char* name) {
    return object.contains(name) && (object[name].is_structured() ? !object[name].empty() : !object[name].is_null());
  }

  /// Removes a field, or nothing, and returns it.
  static Json take(Json& object, const char* name) {
    const auto found = object.find(name);
    if (found == object.end()) return {};
    Json value = std::move(*found);
    object.erase(found);
    return value;
  }

  void ignore(Json& object) const {
    for (const std::string& name : ignored_) object.erase(name);
  }

  [[noreturn]] static void refuse_form(const Json& record) {
    const auto list = record.find("messages");
    if (list != record.end() && list->is_array()) refuse("this conversation has no messages");
    refuse(
        "this record has none of \"messages\", \"conversations\", \"prompt\" with \"completion\", and \"instruction\" "
        "with \"output\"");
  }

  /// Removes the fields that decide what is trained and that nothing here follows; refuses those that say something.
  void refuse_fields(Json& record) const {
    std::vector<std::string> found = take_refused(record, {"tools", "functions"}, "");
    for (const char* list : {"messages", "conversations", "prompt", "completion"}) {
      if (!record.contains(list) || !record[list].is_array()) continue;
      size_t number = 0;
      for (Json& message : record[list]) {
        const std::string place = fmt::format(" of message {}", ++number);
        for (std::string& field : take_refused(message, {"tool_calls"}, place)) found.push_back(std::move(field));
      }
    }
    if (found.empty()) return;
    refuse(fmt::format("this record has {}, which {} not followed here", join(found, ", "),
                       found.size() == 1 ? "is" : "are"));
  }

  std::vector<std::string> take_refused(Json& object, std::vector<const char*> names, const std::string& place) const {
    std::vector<std::string> found;
    if (!object.is_object()) return found;
    ignore(object);
    names.insert(names.end(), {"function_call", "masked", "mask", "loss_mask", "train_detail"});
    for (const char* name : names) {
      const Json value = take(object, name);
      const bool none = is_nothing(value) || value == Json("[]") || value == Json(false);
      if (!none) found.push_back(fmt::format("\"{}\"{}", name, place));
    }
    return found;
  }

  void note_unused(const std::string& name, const Json& value, const char* prefix) {
    if (!is_nothing(value) && !is_harmless(name)) read_.unused.push_back(prefix + name);
  }

  /// A text, or the parts of a list of texts. Problem: "`place` is not text".
  static std::string text_of(const Json& content, const std::string& place, std::vector<std::string>* parts) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) refuse(fmt::format("{} is not text", place));
    std::string text;
    for (const Json& part : content) {
      if (!part.is_object()) refuse(fmt::format("{} is not text", place));
      const Json type = part.value("type", Json("text"));
      if (type != "text") refuse(fmt::format("{} is not text alone: it has a part of type {}", place, type.dump()));
      if (!part.contains("text") || !part["text"].is_string()) refuse(fmt::format("{} is not text", place));
      text += part["text"].get_ref<const std::string&>();
      if (parts) parts->push_back(part["text"].get<std::string>());
    }
    return text;
  }

  /// `is_label`: for messages that do not say it themselves.
  void add_list(Json list, const char* field, std::optional<bool> is_label) {
    if (!list.is_array()) refuse(fmt::format("the field \"{}\" of this record is not a list of messages", field));
    for (Json& message : list) {
      add_message(std::move(message));
      std::optional<bool>& own = read_.messages.back().is_label;
      if (!own) own = is_label;
    }
  }

  void add_message(Json message) {
    const size_t number = read_.messages.size() + 1;
    const std::string place = fmt::format("message {}", number);
    const bool share_gpt = message.is_object() && !message.contains("role") && message.contains("from");
    const char* role = share_gpt ? "from" : "role";
    const char* content = share_gpt ? "value" : "content";
    if (!message.is_object() || !message.contains(role) || !message[role].is_string()) {
      refuse(fmt::format("{} has no \"role\"", place));
    }
    ChatMessage& read = read_.messages.emplace_back();
    read.role = take(message, role).get<std::string>();
    if (share_gpt) read.role = role_of(read.role);
    read.content =
        text_of(take_content(message, content), fmt::format("the \"{}\" of {}", content, place), &read.parts);
    read.is_label = label_of(message, place, read.role == "assistant");
    // transformers drops fields that are null: many templates would print them as "None".
    for (auto field = message.begin(); field != message.end();)
      field = field->is_null() ? message.erase(field) : ++field;
    const Json reasoning = add_reasoning(message);
    for (const auto& [name, value] : message.items()) {
      if (!chat_.mentions(name)) {
        const bool has_other_name = !reasoning.is_null() && value == reasoning;
        if (!has_other_name) note_unused(name, value, "messages[].");
      } else if (is_odd_number(value)) {
        refuse(fmt::format("the \"{}\" of {} is NaN, infinite or beyond double precision", name, place));
      } else {
        read.fields.push_back({name, value.dump()});
      }
    }
  }

  /// Copies a message's reasoning to the names that templates read, as transformers does. Returns it; null: there is
  /// none.
  Json add_reasoning(Json& message) const {
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (!message.contains(name)) continue;
      if (!chat_.mentions("reasoning_content") && !chat_.mentions("thinking")) return {};
      Json reasoning = message[name];
      message["reasoning_content"] = reasoning;
      if (!message.contains("thinking")) message["thinking"] = reasoning;
      return reasoning;
    }
    return {};
  }

  /// The content, after a look at the keys of its parts.
  Json take_content(Json& message, const char* name) {
    Json content = take(message, name);
    if (!content.is_array()) return content;
    for (const Json& part : content) {
      if (!part.is_object()) continue;
      for (const auto& [key, value] : part.items()) {
        if (key != "type" && key != "text") note_unused(key, value, "messages[].content[].");
      }
    }
    return content;
  }

  /// What "weight" and "train" say: `weight` scales the loss of a turn of the assistant, `train` says it of any
  /// message.
  static std::optional<bool> label_of(Json& message, const std::string& place, bool answers) {
    const auto flag = [&](const char* name) -> std::optional<bool> {
      const Json value = take(message, name);
      if (value.is_null()) return std::nullopt;
      if (value.is_boolean()) return value.get<bool>();
      if (value.is_number() && (value == Json(0) || value == Json(1))) return value == Json(1);
      refuse(fmt::format("the \"{}\" of {} is neither 0 nor 1", name, place));
    };
    const std::optional<bool> weight = flag("weight"), train = flag("train");
    if (weight && train && *weight != *train && answers) {
      refuse(fmt::format("the \"weight\" and the \"train\" of {} contradict each other", place));
    }
    if (train) return train;
    return weight && !*weight ? weight : std::nullopt;  // a weight of 1 is the default, and no label of the user's text
  }

  /// One of "prompt" and "completion": a text, or a list of messages, of which a prompt's are no labels.
  void add_side(Json side, const char* field, const char* role) {
    const bool is_prompt = std::string_view(role) == "user";
    const bool is_messages = side.is_array() && std::any_of(side.begin(), side.end(), [](const Json& one) {
                               return one.is_object() && (one.contains("role") || one.contains("from"));
                             });
    if (is_messages) return add_list(std::move(side), field, is_prompt ? std::optional(false) : std::nullopt);
    ChatMessage message{role, ""};
    message.content = text_of(side, fmt::format("the field \"{}\" of this record", field), &message.parts);
    read_.messages.push_back(std::move(message));
  }

  /// Alpaca's earlier turns.
  void add_history(const Json& history) {
    const auto is_turn = [](const Json& turn) {
      return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
    };
    if (!history.is_array() || !std::all_of(history.begin(), history.end(), is_turn)) {
      refuse("the field \"history\" of this record is not a list of pairs of texts");
    }
    for (const Json& turn : history) {
      read_.messages.push_back({"user", turn[0].get<std::string>()});
      read_.messages.push_back({"assistant", turn[1].get<std::string>()});
    }
  }

  /// Alpaca: as other trainers do, the input follows the instruction on a line of its own.
  void add_instruction(Json& record) {
    const auto text = [&](const char* name) {
      const Json value = take(record, name);
      return value.is_null() ? "" : text_of(value, fmt::format("the field \"{}\" of this record", name), nullptr);
    };
    const Json history = take(record, "history");
    if (!is_nothing(history)) add_history(history);
    std::string asked = text("instruction");
    const std::string input = text("input");
    if (!input.empty()) asked += (asked.empty() ? "" : "\n") + input;
    read_.messages.push_back({"user", std::move(asked)});
    read_.messages.push_back({"assistant", text("output")});
  }

  /// The text in "system" beside the messages is the system message.
  void add_system(Json& record) {
    const Json system = take(record, "system");
    if (is_nothing(system)) return;
    ChatMessage message{"system", ""};
    message.content = text_of(system, "the field \"system\" of this record", &message.parts);
    const bool is_there = !read_.messages.empty() && read_.messages[0].role == "system";
    if (is_there && read_.messages[0].content == message.content) return;
    if (is_there) refuse("this record has \"system\" and a message of the system with another text");
    read_.messages.insert(read_.messages.begin(), std::move(message));
  }

  /// Variables of the template, as trl passes them.
  void add_variables(Json& record) {
    const Json variables = take(record, "chat_template_kwargs");
    if (is_nothing(variables)) return;
    if (!variables.is_object()) refuse("the field \"chat_template_kwargs\" of this record is not an object");
    for (const auto& [name, value] : variables.items()) {
      for (const char* own : {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
                              "bos_token", "eos_token", "tokenize", "chat_template"}) {
        if (name == own) refuse(fmt::format("\"chat_template_kwargs\" of this record sets \"{}\"", name));
      }
      if (value.is_number_float() || is_odd_number(value)) {
        refuse(fmt::format("\"{}\" in \"chat_template_kwargs\" of this record is not a whole number", name));
      }
      if (chat_.mentions(name)) {
        read_.variables.push_back({name, value.dump()});
      } else {
        note_unused(name, value, "chat_template_kwargs.");
      }
    }
  }

  /// Whether parse_json put an empty object in the place of a number that JSON does not have. The text is searched only
  /// here: hardly a record has an empty object.
  bool is_odd_number(const Json& value) const {
    std::string text(text_);
    return value.is_object() && value.empty() && replace_odd_numbers(text);
  }

  const ChatTemplate& chat_;
  const std::vector<std::string>& ignored_;
  std::string_view text_;
  Conversation read_;
};

/// The record's JSON, after repairs; nothing, with the problem in `read`.
Json parse_record(std::string_view line, RecordText& read) {
  std::string mended(line);
  read.invalid_utf8 = repair_utf8(mended);
  if (!is_shallow_json(mended)) {
    read.problem = fmt::format("the values of this record are nested more than {} levels deep", kDeepestJson);
    return {};
  }
  Json record = parse_json<Json>(mended, /*allow_exceptions=*/false);
  if (record.is_discarded()) {
    read.invalid_utf8 += repair_surrogate_escapes(mended);
    try {
      record = parse_json<Json>(mended);
    } catch (const Json::parse_error& error) {
      read.problem = describe_no_json(mended, error.byte > 0 ? error.byte - 1 : 0);
    }
  }
  return record;
}

}  // namespace

RecordText read_conversation(std::string_view line, const ChatTemplate& chat, const std::vector<std::string>& ignored) {
  RecordText read;
  Json record = parse_record(line, read);
  if (!read.problem.empty()) return read;
  try {
    Conversation conversation = ConversationReader(chat, ignored, line).read(std::move(record));
    EncodedChat encoded = chat.encode(conversation.messages, conversation.variables);
    read.problem = std::move(encoded.problem);
    if (!read.problem.empty()) return read;
    read.text.emplace();
    read.chat = std::move(encoded);
    read.unused = std::move(conversation.unused);
  } catch (Problem& problem) {
    read.problem = std::move(problem.what);
  }
  return read;
}

}  // namespace titan
