#include "chat_jinja.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace titan::jinja {
namespace {

constexpr int kMostNested = 200;
constexpr int64_t kMostSteps = 10'000'000;

class Run {
 public:
  explicit Run(Members names) { frames_.push_back(std::move(names)); }

  void all(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      if (left_.empty()) one(statement);
    }
  }

  TracedText written = {};

 private:
  void one(const Statement& statement) {
    step();
    switch (statement.what) {
      case Do::data:
        written += TracedText(statement.text);
        return;
      case Do::output:
        written += printed(evaluate(statement.value));
        return;
      case Do::branch:
        return all(truth(evaluate(statement.value)) ? statement.body : statement.otherwise);
      case Do::set:
      case Do::capture: {
        Value value = statement.what == Do::set ? evaluate(statement.value) : text_value(captured(statement.body));
        if (statement.names.empty()) {
          frames_.back()[statement.text] = std::move(value);
        } else {
          const Value space = name(statement.text);
          if (space.kind != Kind::object) misfit(space, "namespace");
          (*space.members)[statement.names[0]] = std::move(value);
        }
        return;
      }
      case Do::macro:
        frames_.back()[statement.text] = {Kind::macro, 0, {}, {}, {}, &statement};
        return;
      case Do::block:
        return scoped({}, statement.body);
      case Do::loop:
        return loop(statement);
      case Do::leave:
        left_ = statement.text;
        return;
    }
  }

  void step() {
    if (++steps_ > kMostSteps) unsupported("a template that runs this long");
  }

  TracedText captured(const std::vector<Statement>& body) {
    TracedText outer = std::exchange(written, {});
    all(body);
    return std::exchange(written, std::move(outer));
  }

  void scoped(Members names, const std::vector<Statement>& body) {
    frames_.push_back(std::move(names));
    all(body);
    frames_.pop_back();
  }

  void loop(const Statement& statement) {
    if (statement.names.size() != 1) unsupported("a loop over several names");
    const std::string& target = statement.names[0];
    Items items = *items_of(evaluate(statement.value));
    if (!statement.condition.empty()) {
      std::erase_if(items, [&](const Value& item) {
        frames_.push_back({{target, item}});
        const bool taken = truth(evaluate(statement.condition[0]));
        frames_.pop_back();
        return !taken;
      });
    }
    if (items.empty()) return all(statement.otherwise);
    const int64_t count = std::ssize(items);
    for (int64_t i = 0; i < count; ++i) {
      Members state{{"index0", number(i)},           {"index", number(i + 1)},
                    {"revindex", number(count - i)}, {"revindex0", number(count - i - 1)},
                    {"first", boolean(i == 0)},      {"last", boolean(i + 1 == count)},
                    {"length", number(count)}};
      if (i > 0) state["previtem"] = items[static_cast<size_t>(i - 1)];
      if (i + 1 < count) state["nextitem"] = items[static_cast<size_t>(i + 1)];
      scoped({{"loop", object(std::move(state))}, {target, items[static_cast<size_t>(i)]}}, statement.body);
      if (std::exchange(left_, {}) == "break") break;
    }
  }

  // Expressions.

  Value name(const std::string& name) const {
    if (name == "true" || name == "True") return boolean(true);
    if (name == "false" || name == "False") return boolean(false);
    if (name == "none" || name == "None") return {Kind::none};
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      const auto found = frame->find(name);
      if (found != frame->end()) return found->second;
    }
    return {Kind::undefined, 0, TracedText(name)};
  }

  /// Evaluates the arguments of a call, filter or test; keyword arguments go to `named`.
  Items arguments(const Expression& expression, Members* named = nullptr) {
    Items values;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      const Expression& part = expression.parts[i];
      if (part.op != Op::keyword) {
        values.push_back(evaluate(part));
      } else if (named) {
        (*named)[part.text] = evaluate(part.parts[0]);
      } else {
        unsupported(fmt::format("the argument \"{}\"", part.text));
      }
    }
    return values;
  }

  Value call_of(const Expression& expression) {
    const Expression& function = expression.parts[0];
    if (function.op == Op::member) {
      return method(as_text(evaluate(function.parts[1])).text, evaluate(function.parts[0]), arguments(expression));
    }
    Members named;
    const Items values = arguments(expression, &named);
    const Value called = evaluate(function);
    return called.kind == Kind::macro ? call_macro(*called.macro, values, std::move(named))
                                      : call(function.text, values, std::move(named));
  }

  Value call_macro(const Statement& macro, const Items& values, Members named) {
    const auto& defaults = macro.value.parts;
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const size_t left = macro.names.size() - i;
      if (i < values.size()) {
        named[macro.names[i]] = values[i];
      } else if (left <= defaults.size() && !named.contains(macro.names[i])) {
        named[macro.names[i]] = evaluate(defaults[defaults.size() - left]);
      }
    }
    std::vector<Members> outer = std::exchange(frames_, {frames_[0]});
    frames_.push_back(std::move(named));
    TracedText text = captured(macro.body);
    frames_ = std::move(outer);
    return text_value(std::move(text));
  }

  Value evaluate(const Expression& expression) {
    step();
    if (++nested_ > kMostNested) unsupported("nesting of this depth");
    Value value = evaluate_nested(expression);
    --nested_;
    return value;
  }

  Value evaluate_nested(const Expression& expression) {
    const auto part = [&](size_t i) { return evaluate(expression.parts[i]); };
    switch (expression.op) {
      case Op::text:
        return text_value(TracedText(expression.text));
      case Op::number:
        return number(expression.number);
      case Op::name:
        return name(expression.text);
      case Op::list: {
        Items items;
        for (const Expression& item : expression.parts) items.push_back(evaluate(item));
        return list(std::move(items));
      }
      case Op::object: {
        Members members;
        for (size_t i = 0; i < expression.parts.size(); i += 2) members[as_text(part(i)).text] = part(i + 1);
        return object(std::move(members));
      }
      case Op::member:
        return member(part(0), part(1));
      case Op::slice:
        return slice(part(0), {part(1), part(2), part(3)});
      case Op::call:
        return call_of(expression);
      case Op::filter:
        return filter(expression.text, part(0), arguments(expression));
      case Op::test:
        return boolean(test(expression.text, part(0), arguments(expression)));
      case Op::choice:
        return truth(part(0)) ? part(1) : part(2);
      case Op::negate:
        return boolean(!truth(part(0)));
      case Op::binary: {
        Value first = part(0);
        if (expression.text == "or") return truth(first) ? first : part(1);
        if (expression.text == "and") return truth(first) ? part(1) : first;
        return binary(expression.text, first, part(1));
      }
      case Op::keyword:
        break;
    }
    unsupported("an argument with a name");
  }

  std::vector<Members> frames_;
  std::string left_;  // break or continue, until the end of the loop
  int64_t steps_ = 0;
  int nested_ = 0;
};

Value value_of(const nlohmann::json& json, size_t from) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return boolean(json.get<bool>());
    case nlohmann::json::value_t::string:
      return text_value(TracedText(json.get_ref<const std::string&>(), from));
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) unsupported(fmt::format("the number {}", json.dump()));
      return number(json.get<int64_t>());
    case nlohmann::json::value_t::number_integer:
      return number(json.get<int64_t>());
    case nlohmann::json::value_t::array: {
      Items items;
      for (const nlohmann::json& item : json) items.push_back(value_of(item, from));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Members members;
      for (const auto& [name, member] : json.items()) members[name] = value_of(member, from);
      return object(std::move(members));
    }
    case nlohmann::json::value_t::null:
      return {Kind::none};
    default:
      unsupported(fmt::format("the value {}", json.dump()));
  }
}

Value value_of(const ChatField& field, size_t from) { return value_of(nlohmann::json::parse(field.json), from); }

/// The content as the template gets it: a text, or a list of parts.
Value content_of(const ChatMessage& message, size_t from) {
  if (message.parts.empty()) return text_value(TracedText(message.content, from));
  Items parts;
  for (const std::string& part : message.parts) {
    parts.push_back(object({{"type", text_value(TracedText("text"))}, {"text", text_value(TracedText(part, from))}}));
  }
  return list(std::move(parts));
}

}  // namespace

TracedText Template::write(const std::vector<ChatMessage>& messages, bool generate,
                           const std::map<std::string, std::string>& names,
                           const std::vector<ChatField>& variables) const {
  Members all{{"tools", {Kind::none}}, {"documents", {Kind::none}}, {"add_generation_prompt", boolean(generate)}};
  const size_t of_fields = messages.size() + 1;
  for (const ChatField& variable : variables) all[variable.name] = value_of(variable, of_fields);
  for (const auto& [name, text] : names) all[name] = text_value(TracedText(text));
  Items conversation;
  size_t from = 0;
  for (const ChatMessage& message : messages) {
    Members members{{"role", text_value(TracedText(message.role))}, {"content", content_of(message, from + 1)}};
    for (const ChatField& field : message.fields) members[field.name] = value_of(field, of_fields + from);
    ++from;
    conversation.push_back(object(std::move(members)));
  }
  all["messages"] = list(std::move(conversation));
  Run run(std::move(all));
  run.all(statements_);
  return std::move(run.written);
}

}  // namespace titan::jinja
