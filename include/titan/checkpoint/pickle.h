// Python's pickles, as far as checkpoints need them: plain values both ways, and objects of a short list of types,
// which are read as names with arguments. Nothing is ever called: a pickle is treated as data. A pickle that names a
// type outside the list is rejected.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "titan/base/error.h"

namespace titan {

/// A tensor of torch has no more dimensions.
inline constexpr size_t kMostDimensions = 64;

struct PickleValue;
using PickleRef = std::shared_ptr<const PickleValue>;

struct PickleValue {
  enum class Kind {
    none,
    boolean,     // integer is 0 or 1
    integer,     // 64 bits; larger ones are rejected
    real,        //
    text,        // UTF-8
    bytes,       // in `text`
    tuple,       // items; torch.Size as well
    list,        // items
    dictionary,  // items: key, value, key, value, …; OrderedDict as well
    global,      // a type or function by name: "module name" in `text`
    object,      // one of the known types: "module name" in `text`; items: arguments, then the state if it has one
    persistent,  // refers to a tensor's storage; items: its identifier
  };
  Kind kind = Kind::none;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<PickleRef> items;
  int depth = 1;        // levels of items, this one included
  bool frozen = false;  // part of another value: no longer changed by the reader, so that no value can contain itself
  uint64_t walk = 1;    // how many values a walk over it visits, plus the bytes of their texts; only the reader sets it

  bool is(Kind wanted) const { return kind == wanted; }
  /// True if it is an object of `type` ("module name").
  bool is_object(std::string_view type) const { return kind == Kind::object && text == type; }
  /// The value of a text key of a dictionary; null if there is none.
  const PickleValue* find(std::string_view key) const;
};

/// A malformed pickle; the caller adds the name of the file.
class PickleError : public Error {
 public:
  explicit PickleError(const std::string& message) : Error(ExitCode::storage, message) {}
};

/// Takes parts out of a pickle while it is read. A PickleValue needs about 25 times the memory of the same value in a
/// compact table, so the parts that make a pickle large are put into a table at once and never exist together as
/// values. A taker may store a number in `integer` of a list or dictionary to recognise it at the next call; it is 0 at
/// first.
class PickleTaker {
 public:
  virtual ~PickleTaker() = default;
  /// Called with each item that is added to `list`; true: it was taken, and the list does not hold it.
  virtual bool take_item(PickleValue& list, const PickleValue& item) = 0;
  /// The same with each pair that is added to `dictionary`.
  virtual bool take_pair(PickleValue& dictionary, const PickleValue& key, const PickleValue& value) = 0;
};

/// Throws PickleError unless `bytes` begin as pickles of protocols 2 to 5 do: with the protocol. Enough to refuse a
/// large file that is none before all of it is read.
void check_pickle_begin(std::string_view bytes);

/// The single value in `bytes`, without what `taker` took. Throws PickleError if it is malformed, truncated, deeper
/// than 100 levels, or of a type that checkpoints do not contain. A value may occur in many places of another; the
/// number of values that a walk over the result visits is bounded by the length of `bytes`.
PickleRef read_pickle(std::string_view bytes, PickleTaker* taker = nullptr);

/// Constructors of values to write.
namespace pickle {
PickleRef none();
PickleRef boolean(bool value);
PickleRef integer(int64_t value);
PickleRef real(double value);
PickleRef text(std::string value);
PickleRef bytes(std::string value);
PickleRef tuple(std::vector<PickleRef> items);
PickleRef list(std::vector<PickleRef> items);
PickleRef dictionary(const std::vector<std::pair<std::string, PickleRef>>& items);
/// An instance that Python creates by calling `name` ("module name") with `arguments`.
PickleRef call(std::string name, std::vector<PickleRef> arguments);
/// An instance that Python creates without calling its initialiser, then fills from `state`.
PickleRef instance(std::string name, PickleRef state);
PickleRef global(std::string name);
PickleRef persistent(PickleRef id);
}  // namespace pickle

/// The pickle of a value. Its length depends only on the value's structure and texts, not on its numbers, except for
/// integers beyond 32 bits.
std::string write_pickle(const PickleRef& value);

/// Writes one value piece by piece, for pickles too large to be held as values. What is open is closed in reverse
/// order.
class PickleStream {
 public:
  /// Receives the bytes in order, in pieces.
  using Sink = std::function<void(std::string_view)>;

  explicit PickleStream(Sink sink);
  /// Ends the pickle and passes the last bytes on.
  void finish();

  void value(const PickleValue& value);
  void integer(int64_t value);
  /// Written once; later occurrences refer to the first.
  void shared_text(const std::string& text);

  void open_tuple() { bytes_ += '('; }
  void close_tuple() { bytes_ += 't'; }
  void open_list();
  void next_item();
  void close_list() { close('e'); }
  void open_dictionary();
  /// Called before the key of each pair.
  void next_pair();
  void close_dictionary() { close('u'); }
  /// A call of `name` with the tuple that is written until it is closed.
  void open_call(const std::string& name) { shared_global(name); }
  void close_call() { bytes_ += 'R'; }
  /// An object that is filled from the state that is written until it is closed.
  void open_instance(const std::string& name);
  void close_instance() { bytes_ += 'b'; }

 private:
  void next(char end);
  void close(char end);
  void shared_global(const std::string& name);
  /// Refers to what is known by `key`; false if it is new: then it must be written and remembered.
  bool refer(const std::string& key);
  void remember(const std::string& key);
  void counted(char code, const std::string& content);
  void tuple(const PickleValue& value);
  void filled(std::string_view begin, const PickleValue& value, char end);
  void global(const std::string& name);
  void object(const PickleValue& value);
  void pass_on();

  template <class Number>
  void number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  Sink sink_;
  std::string bytes_;
  std::vector<size_t> counts_;                       // items of the open lists and dictionaries, the innermost last
  std::unordered_map<std::string, uint32_t> known_;  // places of shared texts and names; each key begins with its kind
};

// The types and functions that a checkpoint's pickles may name. Other names are rejected, so an untrusted pickle can
// name only these; none of them is ever called.

/// `name`: "module name".
bool is_known_name(std::string_view name);

}  // namespace titan
