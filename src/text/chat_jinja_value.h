// The values of a chat template's Jinja: what Python's objects are to Jinja itself. A text carries the origin of its
// bytes, so trimming, splitting and joining need no markers in it. Templates come from strangers: every value is made
// by a Heap, which charges its bytes and the work of a run against a budget and frees all of them at once, so neither
// deep nor cyclic values need recursion to be destroyed. Owned by data; knows no syntax.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat_jinja_syntax.h"

namespace titan::jinja {

/// Text with its origin: 0 for the template, i + 1 for the content of message i, kOtherField for other data.
struct TracedText {
  static constexpr size_t kOtherField = SIZE_MAX;

  struct Span {
    size_t end;
    size_t from;
  };

  void append(std::string_view bytes, size_t from);

  std::string text = {};
  std::vector<Span> spans = {};
};

enum class Kind {
  undefined,
  none,
  boolean,
  number,  ///< of 64 bits; what would be larger is refused
  real,
  text,
  list,
  tuple,
  range,
  view,       ///< keys, values or items of a dictionary
  generator,  ///< what filters such as map return: it has no length and can be read once
  object,     ///< a dictionary
  space,      ///< a namespace
  loop,
  function,  ///< a macro, a method or a function of Jinja's
};

struct Text;
struct Sequence;
class Dictionary;
struct Loop;
struct Function;

struct Value {
  Value() = default;
  explicit Value(Kind of, int64_t value = 0) : kind(of), number(value) {}

  Kind kind = Kind::undefined;
  bool safe = false;  ///< of a text: Markup, which escapes what is added to it
  union {
    int64_t number = 0;  ///< or a boolean
    double real;
    const Text* text;  ///< or the name of the undefined value, or null
    Sequence* sequence;
    Dictionary* members;
    Loop* loop;
    const Function* function;
  };
};

/// The name of a function that stands for a value of a record that has no other here: printing it fails.
inline constexpr std::string_view kUnreadable = "number that is NaN, infinite or beyond 64 bits";

/// Lists in lists. Comparing, printing and freeing them recurse; Python's own limit is about 1,000.
inline constexpr int kDeepestValue = 150;

using Items = std::vector<Value>;
using Named = std::vector<std::pair<std::string_view, Value>>;

/// Part of a buffer that the heap, the template or the conversation owns.
struct Text {
  std::string_view bytes;
  std::vector<TracedText::Span> spans;
};

struct Sequence {
  Items items;
  std::string_view name = {};          // what Python calls it: "dict_items", or the filter that made a generator
  bool used = false;                   // a generator
  std::array<int64_t, 3> bounds = {};  // of a range as range() made it
};

struct Scope;

/// What {{ loop }} is in one iteration.
struct Loop {
  const Items* items;
  size_t at, depth;
  const Statement* statement;  // for a recursive loop, else null
  Scope* scope;
};

struct Function {
  std::string_view name;
  Value self = {};                   // of a method
  const Statement* macro = nullptr;  // of a macro or the body of a call block
  Scope* scope = nullptr;            // where the macro was defined
};

/// The variables of a block.
struct Scope {
  Scope* outer = nullptr;
  bool captured = false;  // a macro refers to it, so it outlives its block
  bool ended = false;     // its block has ended, after which Jinja clears its variables
  std::vector<std::pair<std::string_view, Value>> names = {};
};

class Heap;

/// Keys are what Python can hash, in the order in which they were first set.
class Dictionary {
 public:
  const Value* find(Heap& heap, const Value& key) const;
  void set(Heap& heap, const Value& key, const Value& value);
  size_t size() const { return entries_.size(); }
  const std::vector<std::pair<Value, Value>>& entries() const {
    all_read_ = true;
    return entries_;
  }

  /// Makes it message `number` of the conversation, from 1, and notes from now on which of its entries are read.
  void be_message(size_t number);
  /// 0: another dictionary.
  size_t message() const { return message_; }
  /// Of a message: whether an entry was looked up or the template walked over all of them.
  bool is_read(size_t entry) const { return all_read_ || read_[entry]; }

 private:
  std::optional<size_t> place_of(Heap& heap, const Value& key) const;

  size_t message_ = 0;
  mutable bool all_read_ = false;
  mutable std::vector<bool> read_;  // per entry; empty unless it is a message
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_multimap<uint64_t, size_t> index_;
};

class Heap {
 public:
  /// `bytes`: what the values may take; `work`: about the number of operations.
  Heap(size_t bytes, size_t work) : bytes_(bytes), work_(work) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Throws TemplateError if the budget is spent.
  void charge(size_t bytes);
  /// `amount` may be a number of bytes / 64 or of comparisons.
  void work(size_t amount = 1);

  /// Text that something else owns for as long as this heap.
  Value view(std::string_view bytes, size_t from = 0);
  Value text(TracedText text);
  Value sequence(Kind kind, Items items, std::string_view name = {});
  Value list(Items items) { return sequence(Kind::list, std::move(items)); }
  Value part(const Value& text, size_t begin, size_t end);
  Value dictionary(Kind kind = Kind::object);
  Value undefined(std::string_view name);
  Value loop(const Loop& loop);
  Value function(const Function& function);

  Scope* enter(Scope* outer);
  /// Ends a block. Its scope is used again unless a macro refers to it.
  void leave(Scope* scope);

  /// Appends and charges; `to` is a text that becomes a value or the output.
  void put(TracedText& to, std::string_view bytes, size_t from = 0);
  void put(TracedText& to, const Text& more);

 private:
  size_t bytes_, work_;
  // Deques: values point to their elements.
  std::deque<std::string> buffers_;
  std::deque<Text> texts_;
  std::deque<Sequence> sequences_;
  std::deque<Dictionary> dictionaries_;
  std::deque<Loop> loops_;
  std::deque<Function> functions_;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
};

inline Value none() { return Value(Kind::none); }
inline Value boolean(bool value) { return Value(Kind::boolean, value ? 1 : 0); }
inline Value number(int64_t value) { return Value(Kind::number, value); }
Value real(double value);

/// Throws TemplateError: what titan does not do, although Jinja may.
[[noreturn]] void unsupported(const std::string& what);
/// Throws TemplateError: what is an error in Jinja, too.
[[noreturn]] void mistaken(const std::string& what);
/// Throws: the value is undefined, or is not a `wanted`.
[[noreturn]] void misfit(const Value& value, const char* wanted);
/// Python's name of the value's type.
const char* type_name(const Value& value);

bool is_text(const Value& value);
bool is_whole(const Value& value);   // int or bool
bool is_number(const Value& value);  // int, bool or float
const Text& as_text(const Value& value);
int64_t as_number(const Value& value);
double as_real(const Value& value);

bool truth(const Value& value);
bool equal(Heap& heap, const Value& a, const Value& b, int depth = 0);
/// Python's order: below 0, 0 or above. Throws where Python has none.
int compare(Heap& heap, const Value& a, const Value& b, int depth = 0);
/// Throws for what Python cannot hash.
uint64_t hash_of(const Value& value, int depth = 0);
bool contains(Heap& heap, const Value& all, const Value& item);

/// Appends the value as Python's str() or repr() writes it.
void print(Heap& heap, const Value& value, TracedText& to);
void represent(Heap& heap, const Value& value, TracedText& to, int depth = 0);
/// str(value); a text is returned as it is.
Value printed(Heap& heap, const Value& value);
std::string shown_real(double value);

/// The items of a sequence, the characters of a text or the keys of a dictionary; none for an undefined value.
Items items_of(Heap& heap, const Value& value);
int64_t length_of(Heap& heap, const Value& value);
Value entries_of(Heap& heap, const Value& dictionary, std::string_view view);

/// a.name: attributes and methods of the type come first.
Value attribute(Heap& heap, const Value& of, std::string_view name);
/// a[key]
Value member(Heap& heap, const Value& of, const Value& key);
/// Python's slice of a sequence or text; bounds are numbers or none.
Value slice(Heap& heap, const Value& of, const Value& from, const Value& to, const Value& step);

}  // namespace titan::jinja
