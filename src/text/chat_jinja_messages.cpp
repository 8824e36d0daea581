#include "chat_jinja_messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "titan/base/json.h"

namespace titan::jinja {
namespace {

// As base/json.h's: arguments of calls that a corpus' reader has taken are taken here, too.
constexpr size_t kDeepestJson = 100;

/// Makes the value of JSON, whose texts have no message's origin.
class JsonReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonReader(Heap& heap) : heap_(heap) {}

  Value result() const { return result_; }

  bool null() override { return put(none()); }
  bool boolean(bool value) override { return put(jinja::boolean(value)); }
  bool number_integer(number_integer_t value) override { return put(number(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{INT64_MAX}) unsupported("a whole number beyond 64 bits");
    return put(number(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return put(real(value)); }
  bool string(string_t& value) override { return put(text(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open({heap_.dictionary(), {}, {}}); }
  bool start_array(size_t) override { return open({none(), {}, {}}); }
  bool key(string_t& name) override {
    open_.back().key = text(name);
    return true;
  }
  bool end_object() override { return close(open_.back().object); }
  bool end_array() override { return close(heap_.list(std::move(open_.back().items))); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  struct Container {
    Value object;  // none for a list
    Value key;
    Items items;
  };

  Value text(const std::string& bytes) {
    TracedText copy;
    heap_.put(copy, bytes, TracedText::kOtherField);
    return heap_.text(std::move(copy));
  }
  bool open(Container container) {
    if (open_.size() == kDeepestJson) unsupported("JSON nested this deep");
    open_.push_back(std::move(container));
    return true;
  }
  bool close(const Value& value) {
    open_.pop_back();
    return put(value);
  }
  bool put(const Value& value) {
    heap_.work();
    if (open_.empty()) {
      result_ = value;
    } else if (Container& in = open_.back(); in.object.kind == Kind::object) {
      in.object.members->set(heap_, in.key, value);
    } else {
      heap_.charge(sizeof value);
      in.items.push_back(value);
    }
    return true;
  }

  Heap& heap_;
  std::vector<Container> open_;
  Value result_;
};

Value value_of(Heap& heap, const ChatField& field) {
  if (field.json.empty()) return heap.function({kUnreadable});
  JsonReader reader(heap);
  if (!parse_json_events(field.json, &reader)) mistaken(fmt::format("the value of {} is not JSON", field.name));
  return reader.result();
}

bool has_field(const std::vector<ChatField>& fields, std::string_view name) {
  return std::any_of(fields.begin(), fields.end(), [&](const ChatField& field) { return field.name == name; });
}

/// Sets `fields` in `made`; some have the values in `known`.
void set_fields(Heap& heap, Dictionary& made, const std::vector<ChatField>& fields, const Named& known) {
  for (const ChatField& field : fields) {
    const auto own = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == field.name; });
    // A key is text of the record: what looks like a special token in it is none.
    made.set(heap, heap.view(field.name, TracedText::kOtherField),
             own == known.end() ? value_of(heap, field) : own->second);
  }
}

/// A content that is a list of parts.
Value parts_of(Heap& heap, const ChatMessage& message, size_t origin) {
  Items items;
  for (const ChatPart& part : message.parts) {
    const Value text = heap.view(part.text, origin), made = heap.dictionary();
    set_fields(heap, *made.members, part.fields, {{"text", text}});
    if (!has_field(part.fields, "text")) made.members->set(heap, heap.view("text"), text);
    items.push_back(made);
  }
  return heap.list(std::move(items));
}

Value value_of(Heap& heap, const ChatMessage& message, size_t origin) {
  const Named own{
      {"role", heap.view(message.role)},
      {"content", message.parts.empty() ? heap.view(message.content, origin) : parts_of(heap, message, origin)}};
  const Value made = heap.dictionary();
  for (const auto& [name, value] : own) {
    if (!has_field(message.fields, name)) made.members->set(heap, heap.view(name), value);
  }
  set_fields(heap, *made.members, message.fields, own);
  made.members->be_message(origin);
  return made;
}

size_t size_of(const std::vector<ChatField>& fields) {
  size_t size = 0;
  // Parsed JSON takes up to 16 times its text: lists of small numbers, "[0,0,0", are the worst case.
  for (const ChatField& field : fields) size += field.name.size() + 16 * field.json.size();
  return size;
}

}  // namespace

size_t size_of(const std::vector<ChatMessage>& messages, const std::vector<ChatField>& variables) {
  size_t size = size_of(variables);
  for (const ChatMessage& message : messages) {
    size += 100 + 2 * message.content.size() + size_of(message.fields);
    for (const ChatPart& part : message.parts) size += size_of(part.fields);
  }
  return size;
}

Value define_conversation(Heap& heap, Scope& scope, const std::vector<ChatMessage>& messages,
                          const std::vector<ChatField>& variables) {
  for (const ChatField& field : variables) {
    std::erase_if(scope.names, [&](const auto& each) { return each.first == field.name; });
    scope.names.emplace_back(field.name, value_of(heap, field));
  }
  Items values;
  for (const ChatMessage& message : messages) values.push_back(value_of(heap, message, values.size() + 1));
  const Value list = heap.list(std::move(values));
  scope.names.emplace_back("messages", list);
  return list;
}

std::vector<std::string> read_fields(const Dictionary& message) {
  std::vector<bool> read;
  for (size_t i = 0; i < message.size(); ++i) read.push_back(message.is_read(i));
  std::vector<std::string> names;
  size_t i = 0;
  for (const auto& [key, value] : message.entries()) {
    const std::string_view name = key.text->bytes;
    if (read[i++] && name != "role" && name != "content") names.emplace_back(name);
  }
  return names;
}

}  // namespace titan::jinja
