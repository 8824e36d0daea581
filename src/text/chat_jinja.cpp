#include "chat_jinja.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "chat_jinja_messages.h"
#include "chat_jinja_operations.h"
#include "chat_jinja_text.h"

namespace titan::jinja {
namespace {

constexpr int kMostNested = 300;  // each level is a call of this interpreter: deeper templates would overflow its stack

// What a run may take: a fixed part, and what a conversation's size explains. Templates keep several copies of the
// texts and look at every pair of messages; published ones need a hundredth of this.
constexpr size_t kBytes = 24 << 20, kBytesPerByte = 64, kBytesPerPair = 100;
constexpr size_t kWork = 4'000'000, kWorkPerByte = 64, kWorkPerPair = 200;

class Run {
 public:
  Run(Heap& heap, Scope* root) : heap_(heap), scope_(root) {}

  Rendered all(const std::vector<Statement>& statements) {
    block(statements);
    return {std::move(written_), std::move(marks_), std::move(iterations_)};
  }

 private:
  using Statements = std::vector<Statement>;

  struct Deeper {
    explicit Deeper(Run* of) : run(of) {
      if (++run->nested_ > kMostNested) unsupported("nesting of this depth");
    }
    ~Deeper() { --run->nested_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Run* run;
  };

  void block(const Statements& statements) {
    const Deeper deeper(this);
    for (const Statement& statement : statements) {
      if (left_.empty()) one(statement);
    }
  }

  void one(const Statement& statement) {
    heap_.work();
    switch (statement.what) {
      case Do::data:
        return heap_.put(written_, statement.text);
      case Do::output:
        return print(heap_, evaluate(statement.value), written_);
      case Do::branch:
        return branch(statement);
      case Do::set:
        return assign(statement.target, evaluate(statement.value));
      case Do::capture:
        return assign(statement.target, filtered(statement));
      case Do::filter:
        return print(heap_, filtered(statement), written_);
      case Do::macro:
        return define(statement.text, macro(statement));
      case Do::call:
        return call_block(statement);
      case Do::scope:
        return with(statement);
      case Do::generation:
        return generation(statement);
      case Do::loop:
        return loop(statement);
      case Do::leave:
        left_ = statement.text;
        return;
      case Do::refuse:
        unsupported(statement.text);
    }
  }

  void branch(const Statement& statement) {
    for (size_t i = 0; i < statement.more.size(); ++i) {
      if (truth(evaluate(statement.more[i]))) return block(statement.bodies[i]);
    }
    block(statement.bodies.back());
  }

  // Scopes.

  void define(std::string_view name, const Value& value) {
    for (auto& [known, old] : scope_->names) {
      if (known != name) continue;
      old = value;
      return;
    }
    heap_.charge(sizeof(std::pair<std::string_view, Value>));
    scope_->names.emplace_back(name, value);
  }

  void assign(const Expression& target, const Value& value) {
    if (target.op == Op::name) return define(target.text, value);
    if (target.op == Op::attribute) {
      const Value space = name(target.parts[0].text);
      if (space.kind != Kind::space) misfit(space, "namespace");
      if (target.text.starts_with('_')) mistaken("a namespace has no names that begin with _");
      return space.members->set(heap_, heap_.view(target.text), value);
    }
    const Items items = items_of(heap_, value);
    if (items.size() != target.parts.size()) {
      mistaken(fmt::format("{} values for {} names", items.size(), target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
  }

  /// Runs `body` in a scope inside `outer`. `lasts`: Jinja makes a function of it, whose variables a macro keeps.
  template <typename Body>
  void scoped(Scope* outer, const Body& body, bool lasts = false) {
    Scope* const before = std::exchange(scope_, heap_.enter(outer));
    body();
    heap_.leave(scope_);
    if (lasts) scope_->ended = false;
    scope_ = before;
  }

  template <typename Body>
  Value captured(const Body& body) {
    if (captures_++ == 0) top_size_ = written_.text.size();
    TracedText outer = std::exchange(written_, {});
    body();
    --captures_;
    return heap_.text(std::exchange(written_, std::move(outer)));
  }

  Value filtered(const Statement& statement) {
    const Value text = captured([&] { scoped(scope_, [&] { block(statement.bodies[0]); }); });
    const Value outer = std::exchange(block_, text);
    const Value value = evaluate(statement.value);
    block_ = outer;
    return value;
  }

  void with(const Statement& statement) {
    std::vector<Value> values;  // all are evaluated first: as in Jinja, one cannot see the names that `with` defines
    for (const Expression& value : statement.defaults) values.push_back(evaluate(value));
    scoped(scope_, [&] {
      for (size_t i = 0; i < values.size(); ++i) assign(statement.more[i], values[i]);
      block(statement.bodies[0]);
    });
  }

  void generation(const Statement& statement) {
    const Value text = captured([&] {
      scoped(
          scope_, [&] { block(statement.bodies[0]); }, /*lasts=*/true);
    });
    heap_.charge(sizeof(Rendered::Mark));
    marks_.push_back(
        {captures_ > 0 ? top_size_ : written_.text.size(), static_cast<size_t>(length_of(heap_, text)), message_});
    print(heap_, text, written_);
  }

  void loop(const Statement& statement) {
    const Value over = evaluate(statement.value);
    if (!statement.recursive) return iterate(statement, over, scope_, 1);
    print(heap_, captured([&] { iterate(statement, over, scope_, 1); }), written_);
  }

  void iterate(const Statement& statement, const Value& over, Scope* outer, size_t depth) {
    Items items = items_of(heap_, over);
    if (!statement.more.empty()) {
      std::erase_if(items, [&](const Value& item) {
        bool taken = false;
        scoped(outer, [&] {
          assign(statement.target, item);
          taken = truth(evaluate(statement.more[0]));
        });
        return !taken;
      });
    }
    if (items.empty()) return scoped(outer, [&] { block(statement.bodies[1]); });
    const Items& kept = heap_.list(std::move(items)).sequence->items;
    const Value state = heap_.loop({&kept, 0, depth, statement.recursive ? &statement : nullptr, outer});
    for (size_t i = 0; i < kept.size(); ++i) {
      state.loop->at = i;
      const size_t begin = written_.text.size(), message = number_of(kept[i]);
      const size_t around = std::exchange(message_, message != 0 ? message : message_);
      scoped(outer, [&] {
        define("loop", state);
        assign(statement.target, kept[i]);
        block(statement.bodies[0]);
      });
      message_ = around;
      note_iteration(begin, message);
      if (std::exchange(left_, {}) == "break") break;
    }
  }

  /// 0 if it is no message.
  static size_t number_of(const Value& item) { return item.kind == Kind::object ? item.members->message() : 0; }

  void note_iteration(size_t begin, size_t message) {
    if (captures_ > 0 || begin == written_.text.size()) return;
    heap_.charge(sizeof(Rendered::Iteration));
    iterations_.push_back({begin, written_.text.size(), message});
  }

  // Macros.

  Value macro(const Statement& statement) {
    for (Scope* scope = scope_; scope && !scope->captured; scope = scope->outer) scope->captured = true;
    return heap_.function({statement.text, {}, &statement, scope_});
  }

  void call_block(const Statement& statement) { print(heap_, call(statement.value, macro(statement)), written_); }

  Value call_macro(const Function& function, const Items& values, Named named) {
    const Statement& macro = *function.macro;
    for (const Scope* scope = function.scope; scope; scope = scope->outer) {
      heap_.work();
      if (scope->ended) unsupported("calling a macro outside of the block that defines it");
    }
    const auto take = [&](std::string_view name) -> std::optional<Value> {
      for (auto at = named.begin(); at != named.end(); ++at) {
        if (at->first != name) continue;
        const Value value = at->second;
        named.erase(at);
        return value;
      }
      return std::nullopt;
    };
    const std::optional<Value> caller = macro.caller ? take("caller") : std::nullopt;
    return captured([&] {
      scoped(
          function.scope,
          [&] {
            if (macro.caller) define("caller", caller ? *caller : heap_.undefined("caller"));
            bind(macro, values, take);
            if (values.size() > macro.names.size() && !macro.varargs)
              mistaken(fmt::format("{} takes fewer arguments", function.name));
            if (macro.varargs) {
              const size_t taken = std::min(values.size(), macro.names.size());
              define("varargs",
                     heap_.sequence(Kind::tuple, {values.begin() + static_cast<std::ptrdiff_t>(taken), values.end()}));
            }
            if (macro.kwargs) {
              const Value rest = heap_.dictionary();
              for (const auto& [key, value] : named) rest.members->set(heap_, heap_.view(key), value);
              define("kwargs", rest);
            } else if (!named.empty()) {
              mistaken(fmt::format("{} has no argument \"{}\"", function.name, named[0].first));
            }
            block(macro.bodies[0]);
          },
          /*lasts=*/true);
    });
  }

  /// Defines a macro's parameters.
  template <typename Take>
  void bind(const Statement& macro, const Items& values, const Take& take) {
    const size_t without_default = macro.names.size() - macro.defaults.size();
    for (size_t i = 0; i < macro.names.size(); ++i) {
      if (i < values.size()) {
        define(macro.names[i], values[i]);
      } else if (const std::optional<Value> given = take(macro.names[i])) {
        define(macro.names[i], *given);
      } else {
        define(macro.names[i],
               i < without_default ? heap_.undefined(macro.names[i]) : evaluate(macro.defaults[i - without_default]));
      }
    }
  }

  // Expressions.

  Value name(std::string_view name) {
    if (name == "true" || name == "True") return boolean(true);
    if (name == "false" || name == "False") return boolean(false);
    if (name == "none" || name == "None") return none();
    for (const Scope* scope = scope_; scope; scope = scope->outer) {
      heap_.work(scope->names.size() / 16);
      for (const auto& [known, value] : scope->names) {
        if (known == name) return value;
      }
    }
    return is_global(name) ? heap_.function({name}) : heap_.undefined(name);
  }

  /// Evaluates the arguments of a call, filter or test.
  Items arguments(const Expression& expression, Named& named) {
    Items values;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      const Expression& part = expression.parts[i];
      if (part.op == Op::keyword) {
        named.emplace_back(part.text, evaluate(part.parts[0]));
      } else if (part.op == Op::spread) {
        const Items more = items_of(heap_, evaluate(part.parts[0]));
        values.insert(values.end(), more.begin(), more.end());
      } else if (part.op == Op::spread_named) {
        const Value more = evaluate(part.parts[0]);
        if (more.kind != Kind::object) misfit(more, "object");
        for (const auto& [key, value] : more.members->entries()) named.emplace_back(as_text(key).bytes, value);
      } else {
        values.push_back(evaluate(part));
      }
    }
    for (size_t i = 0; i < named.size(); ++i) {
      heap_.work();
      for (size_t j = 0; j < i; ++j) {
        if (named[i].first == named[j].first)
          mistaken(fmt::format("the argument \"{}\" is given twice", named[i].first));
      }
    }
    return values;
  }

  Value call(const Expression& expression, std::optional<Value> caller = std::nullopt) {
    const Value called = evaluate(expression.parts[0]);
    Named named;
    const Items values = arguments(expression, named);
    if (caller) named.emplace_back("caller", *caller);
    if (called.kind == Kind::loop && values.size() == 1 && named.empty()) {
      const Loop loop = *called.loop;
      if (!loop.statement) mistaken("a loop that is not recursive is called");
      return captured([&] { iterate(*loop.statement, values[0], loop.scope, loop.depth + 1); });
    }
    if (called.kind != Kind::function) misfit(called, "function");
    const Function& function = *called.function;
    return function.macro ? call_macro(function, values, std::move(named))
                          : call_built_in(heap_, function, values, named);
  }

  Value compared(const Expression& expression) {
    Value left = evaluate(expression.parts[0]), result;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      const Value right = evaluate(expression.parts[i].parts[0]);
      result = binary(heap_, expression.parts[i].text, left, right);
      if (!truth(result)) break;
      left = right;
    }
    return result;
  }

  Value dictionary(const Expression& expression) {
    const Value made = heap_.dictionary();
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      const Value key = evaluate(expression.parts[i]);
      made.members->set(heap_, key, evaluate(expression.parts[i + 1]));
    }
    return made;
  }

  Value tested(const Expression& expression) {
    const Value value = evaluate(expression.parts[0]);
    Named named;
    const Items values = arguments(expression, named);
    if (!named.empty()) unsupported(fmt::format("the argument \"{}\" of a test", named[0].first));
    return boolean(test(heap_, expression.text, value, values));
  }

  Value evaluate(const Expression& expression) {
    heap_.work();
    const Deeper deeper(this);
    const auto part = [&](size_t i) { return evaluate(expression.parts[i]); };
    switch (expression.op) {
      case Op::text:
        return heap_.view(expression.text);
      case Op::number:
        return number(expression.number);
      case Op::real:
        return real(expression.real);
      case Op::name:
        return name(expression.text);
      case Op::list:
      case Op::tuple: {
        Items items;
        for (const Expression& item : expression.parts) items.push_back(evaluate(item));
        return heap_.sequence(expression.op == Op::list ? Kind::list : Kind::tuple, std::move(items));
      }
      case Op::object:
        return dictionary(expression);
      case Op::attribute:
        return attribute(heap_, part(0), expression.text);
      case Op::choice:
        return truth(part(0)) ? part(1) : part(2);
      case Op::negate:
        return boolean(!truth(part(0)));
      case Op::logic: {
        const Value first = part(0);
        return truth(first) == (expression.text == "or") ? first : part(1);
      }
      case Op::compare:
        return compared(expression);
      case Op::test:
        return tested(expression);
      case Op::call:
        return call(expression);
      default:
        return operation(expression);
    }
  }

  Value operation(const Expression& expression) {
    const Value first = expression.parts.empty() ? none() : evaluate(expression.parts[0]);
    const auto part = [&](size_t i) { return evaluate(expression.parts[i]); };
    switch (expression.op) {
      case Op::member:
        return member(heap_, first, part(1));
      case Op::slice: {
        const Value from = part(1), to = part(2);
        return slice(heap_, first, from, to, part(3));
      }
      case Op::filter: {
        Named named;
        const Items values = arguments(expression, named);
        return filter(heap_, expression.text, first, values, named);
      }
      case Op::binary:
        return binary(heap_, expression.text, first, part(1));
      case Op::minus:
        return negative(first);
      case Op::plus:
        if (!is_number(first)) misfit(first, "number");
        return first.kind == Kind::boolean ? number(first.number) : first;
      case Op::block:
        return block_;
      default:
        unsupported(expression.text);
    }
  }

  Heap& heap_;
  Scope* scope_;
  TracedText written_ = {};
  std::vector<Rendered::Mark> marks_ = {};
  std::vector<Rendered::Iteration> iterations_ = {};
  Value block_ = {};            // what the filters of a block apply to
  std::string_view left_ = {};  // break or continue, until the end of the loop
  size_t captures_ = 0, top_size_ = 0;
  size_t message_ = 0;  // that of the innermost loop over messages
  int nested_ = 0;
};

}  // namespace

Rendered Template::write(const std::vector<ChatMessage>& messages, bool generate,
                         const std::map<std::string, std::string>& names,
                         const std::vector<ChatField>& variables) const {
  const size_t size = size_of(messages, variables), pairs = messages.size() * messages.size();
  Heap heap(kBytes + kBytesPerByte * size + kBytesPerPair * pairs, kWork + kWorkPerByte * size + kWorkPerPair * pairs);
  Scope* const root = heap.enter(nullptr);
  root->names = {{"tools", none()}, {"documents", none()}, {"add_generation_prompt", boolean(generate)}};
  for (const auto& [name, text] : names) root->names.emplace_back(name, heap.view(text));
  const Value list = define_conversation(heap, *root, messages, variables);
  Rendered rendered = Run(heap, root).all(syntax_.statements);
  for (const Value& message : list.sequence->items) rendered.read.push_back(read_fields(*message.members));
  return rendered;
}

}  // namespace titan::jinja
