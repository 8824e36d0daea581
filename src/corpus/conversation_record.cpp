// Reads the conversation in one record. What a record says is followed or refused by name: a field that nothing reads
// is reported unless it is known to be harmless.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "conversation_fields.h"
#include "conversation_json.h"
#include "file_source.h"
#include "titan/base/text.h"
#include "titan/text/chat.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

std::string role_of(const std::string& from) {
  if (from == "human") return "user";
  const bool answers = from == "gpt" || from == "chatgpt" || from == "bing" || from == "bard";
  return answers ? "assistant" : from;
}

struct Conversation {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatField> variables = {};
  std::vector<std::string> unused = {};
  /// A field of a message that is of use only if the template reads it.
  struct Field {
    size_t message;
    std::string name;
    bool is_reasoning;  // under all names that the template sees it by
  };
  std::vector<Field> fields = {};
};

/// Why a record is bad, as the end of a sentence.
struct Problem {
  std::string what;
};

[[noreturn]] void refuse(std::string what) { throw Problem{std::move(what)}; }

class ConversationReader {
 public:
  ConversationReader(const ChatTemplate& chat, const std::vector<std::string>& ignored)
      : chat_(chat), ignored_(ignored) {}

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
    note_unused(record, "", [](const std::string&, const Json&) { return false; });
    return std::move(read_);
  }

 private:
  static bool has_field(const Json& object, const char* name) {
    return object.contains(name) && !object[name].is_null();
  }
  static bool has(const Json& object, const char* name) {
    return object.contains(name) && (object[name].is_string() || !is_nothing(object[name]));
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

  /// Refuses what decides what is trained and is not followed here, unless it says nothing. What a message says stays
  /// in it, since templates may read it.
  void refuse_fields(Json& record) const {
    std::vector<std::string> found;
    const auto refuse_in = [&](const Json& object, const char* name, const std::string& place) {
      const Json value = object.value(name, Json());
      const bool none = is_nothing(value) || value == Json("[]") || value == Json(false);
      if (!none) found.push_back(fmt::format("\"{}\"{}", name, place));
    };
    std::vector<const char*> names{"tools", "functions"};
    names.insert(names.end(), kNotFollowed.begin(), kNotFollowed.end());
    ignore(record);
    for (const char* name : names) {
      refuse_in(record, name, "");
      record.erase(name);
    }
    for (const char* list : {"messages", "conversations", "prompt", "completion"}) {
      if (!record.contains(list) || !record[list].is_array()) continue;
      size_t number = 0;
      for (Json& message : record[list]) {
        const std::string place = fmt::format(" of message {}", ++number);
        if (!message.is_object()) continue;
        ignore(message);
        refuse_in(message, "tool_calls", place);
        for (const char* name : kNotFollowed) refuse_in(message, name, place);
        for (const char* name : kTrained) {
          const std::optional<bool> said = flag_of(message.value(name, Json()));
          if (said && *said != answers(message)) found.push_back(fmt::format("\"{}\"{}", name, place));
        }
      }
    }
    if (found.empty()) return;
    refuse(fmt::format("this record has {}, which {} not followed here", join(found, ", "),
                       found.size() == 1 ? "is" : "are"));
  }

  /// The name of a message's field for its role.
  static const char* role_field(const Json& message) {
    return !has_field(message, "role") && has_field(message, "from") ? "from" : "role";
  }

  static bool answers(const Json& message) {
    const Json role = message.value(role_field(message), Json());
    return role.is_string() && role_of(role.get<std::string>()) == "assistant";
  }

  /// True, false, 1 or 0; nothing for another value.
  static std::optional<bool> flag_of(const Json& value) {
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number() && (value == Json(0) || value == Json(1))) return value == Json(1);
    return std::nullopt;
  }

  /// Notes, by name, the fields of `object` that are not `used`: called with a field's name and value.
  template <typename Used>
  void note_unused(const Json& object, const char* prefix, const Used& used) {
    const auto first = std::ssize(read_.unused);
    for (const auto& [name, value] : object.items()) {
      if (!is_nothing(value) && !is_harmless(name) && !used(name, value)) read_.unused.push_back(prefix + name);
    }
    std::sort(read_.unused.begin() + first, read_.unused.end());
  }

  /// A text, or the parts of a list of texts. Problem: "`place` is not text".
  std::string text_of(const Json& content, const std::string& place, std::vector<ChatPart>* parts) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) refuse(fmt::format("{} is not text", place));
    if (content.empty()) refuse(fmt::format("{} is an empty list", place));
    std::string text;
    for (const Json& part : content) {
      if (!part.is_object()) refuse(fmt::format("{} is not text", place));
      const Json type = part.value("type", Json("text"));
      if (type != "text") refuse(fmt::format("{} is not text alone: it has a part of type {}", place, type.dump()));
      if (!part.contains("text") || !part["text"].is_string()) refuse(fmt::format("{} is not text", place));
      text += part["text"].get_ref<const std::string&>();
      if (!parts) continue;
      ChatPart& added = parts->emplace_back(ChatPart{part["text"].get<std::string>(), {}});
      for (const auto& [name, value] : part.items()) {
        added.fields.push_back(name == "text" ? ChatField{name, ""} : field_of(name, value));
      }
    }
    return text;
  }

  /// What the template does not name may have any value.
  ChatField field_of(const std::string& name, const Json& value) {
    const bool is_shown = is_readable(value) || (chat_.mentions(name) && !has_odd_number(value));
    return {name, is_shown ? value.dump() : ""};
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
    const std::string place = fmt::format("message {}", read_.messages.size() + 1);
    const char* role = role_field(message);
    const bool share_gpt = std::string_view(role) == "from";
    const char* content = share_gpt ? "value" : "content";
    if (!message.is_object() || !message.contains(role) || !message[role].is_string()) {
      refuse(fmt::format("{} has no \"role\"", place));
    }
    ChatMessage& read = read_.messages.emplace_back();
    read.role = message[role].get<std::string>();
    if (share_gpt) read.role = role_of(read.role);
    if (!has_field(message, content)) refuse_without_text(message, place, content);
    const Json& said = message[content];
    note_parts(said);
    read.content = text_of(said, fmt::format("the \"{}\" of {}", content, place), &read.parts);
    read.is_label = label_of(message, place, read.role == "assistant");
    const Json reasoning = reasoning_of(message);
    for (const auto& [name, value] : message.items()) {
      const bool is_trained = std::ranges::find(kTrained, std::string_view(name)) != kTrained.end();
      const bool is_used = name == role || name == content || is_followed_or_refused(name) || is_harmless(name) ||
                           (is_trained && flag_of(value));
      const bool is_reasoning = !reasoning.is_null() && value == reasoning;
      if (!is_used && !is_nothing(value)) read_.fields.push_back({read_.messages.size() - 1, name, is_reasoning});
    }
    add_fields(message, role, content, reasoning, read.fields);
  }

  /// `content`: the field that is missing.
  [[noreturn]] static void refuse_without_text(const Json& message, const std::string& place, const char* content) {
    const char* other = std::string_view(content) == "content" ? "value" : "content";
    const bool is_there = has_field(message, other) && (message[other].is_string() || message[other].is_array());
    refuse(fmt::format(
        "{} has no \"{}\"{}", place, content,
        is_there ? fmt::format(", but a \"{}\": \"content\" goes with \"role\", \"value\" with \"from\"", other) : ""));
  }

  /// What the template sees, in the order of the record: a template may walk over all fields of a message.
  void add_fields(const Json& message, std::string_view role, std::string_view content, const Json& reasoning,
                  std::vector<ChatField>& fields) {
    const auto add = [&](const std::string& name, const Json& value) {
      if (chat_.mentions(name) && has_odd_number(value)) {
        refuse(fmt::format("the \"{}\" of message {} is NaN, infinite or beyond double precision", name,
                           read_.messages.size()));
      }
      fields.push_back(field_of(name, value));
    };
    if (!reasoning.is_null()) add("thinking", has_field(message, "thinking") ? message["thinking"] : reasoning);
    for (const auto& [name, value] : message.items()) {
      // transformers drops fields that are null: many templates would print them as "None".
      if (value.is_null() || name == "thinking") continue;
      if (name == role) {
        fields.push_back({"role", ""});
      } else if (name == content) {
        fields.push_back({"content", ""});
      } else if (name != "content") {  // beside a "value"
        add(name, value);
      }
    }
    if (!reasoning.is_null() && !has_field(message, "reasoning_content")) add("reasoning_content", reasoning);
  }

  /// A message's reasoning; null: there is none. As in transformers, a template sees it under two of its three names.
  static Json reasoning_of(const Json& message) {
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (has_field(message, name)) return message[name];
    }
    return {};
  }

  /// Notes the keys of a content's parts that nothing reads.
  void note_parts(const Json& content) {
    if (!content.is_array()) return;
    for (const Json& part : content) {
      if (!part.is_object()) continue;
      note_unused(part, "messages[].content[].", [&](const std::string& key, const Json&) {
        return key == "type" || key == "text" || chat_.mentions(key);
      });
    }
  }

  /// What "weight" and "train" say: `weight` scales the loss of a turn of the assistant, `train` says it of any
  /// message.
  static std::optional<bool> label_of(const Json& message, const std::string& place, bool answers) {
    const auto flag = [&](const char* name) {
      const Json value = message.value(name, Json());
      const std::optional<bool> said = flag_of(value);
      if (!said && !value.is_null()) refuse(fmt::format("the \"{}\" of {} is neither 0 nor 1", name, place));
      return said;
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
      return is_nothing(value) && std::string_view(name) != "output"
                 ? ""
                 : text_of(value, fmt::format("the field \"{}\" of this record", name), nullptr);
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
    for (Conversation::Field& field : read_.fields) ++field.message;
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
      if (value.is_number_float() || has_odd_number(value)) {
        refuse(fmt::format("\"{}\" in \"chat_template_kwargs\" of this record is not a whole number", name));
      }
      if (chat_.mentions(name)) read_.variables.push_back({name, value.dump()});
    }
    note_unused(variables, "chat_template_kwargs.",
                [&](const std::string& name, const Json&) { return chat_.mentions(name); });
  }

  const ChatTemplate& chat_;
  const std::vector<std::string>& ignored_;
  Conversation read_;
};

/// The names of what nothing has read.
std::vector<std::string> unused_in(const Conversation& conversation, const EncodedChat& encoded) {
  std::set<std::string> unread;
  for (const Conversation::Field& field : conversation.fields) {
    const std::vector<std::string>& read = encoded.read.at(field.message);
    const auto is_read = [&](std::string_view name) { return std::ranges::find(read, name) != read.end(); };
    const bool is_used =
        is_read(field.name) || (field.is_reasoning && (is_read("reasoning_content") || is_read("thinking")));
    if (!is_used) unread.insert("messages[]." + field.name);
  }
  std::vector<std::string> unused(unread.begin(), unread.end());
  unused.insert(unused.end(), conversation.unused.begin(), conversation.unused.end());
  return unused;
}

}  // namespace

RecordText read_conversation(std::string_view line, const ChatTemplate& chat, const std::vector<std::string>& ignored) {
  RecordText read;
  Json record = parse_conversation(line, read);
  if (!read.problem.empty()) return read;
  try {
    Conversation conversation = ConversationReader(chat, ignored).read(std::move(record));
    EncodedChat encoded = chat.encode(conversation.messages, conversation.variables);
    read.problem = std::move(encoded.problem);
    if (!read.problem.empty()) return read;
    read.text.emplace();
    read.unused = unused_in(conversation, encoded);
    read.chat = std::move(encoded);
  } catch (Problem& problem) {
    read.problem = std::move(problem.what);
  }
  return read;
}

}  // namespace titan
