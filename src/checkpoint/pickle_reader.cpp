// The pickle machine: a stack, a memo, and the opcodes of protocols 2 to 5 that build values. It never calls anything.
#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "titan/checkpoint/pickle.h"

namespace titan {
namespace {

using Kind = PickleValue::Kind;
using Node = std::shared_ptr<PickleValue>;

constexpr int kMaximumDepth = 100;

/// The bytes that latin-1 text stands for: how protocol 2 spells bytes.
std::string latin1_bytes(std::string_view utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto first = static_cast<unsigned char>(utf8[i]);
    if (first < 0x80) {
      bytes += static_cast<char>(first);
      continue;
    }
    const bool two = (first == 0xC2 || first == 0xC3) && i + 1 < utf8.size();
    if (!two) throw PickleError("its encoded bytes hold a character that is no byte");
    bytes += static_cast<char>((first & 0x03) << 6 | (static_cast<unsigned char>(utf8[++i]) & 0x3F));
  }
  return bytes;
}

class Machine {
 public:
  explicit Machine(std::string_view bytes) : rest_(bytes) {}

  PickleRef run() {
    for (;;) {
      const char code = take(1)[0];
      if (code == '.') break;
      if (!scalar(code) && !container(code) && !memo(code) && !object(code)) {
        throw PickleError(fmt::format("it uses instruction 0x{:02x}, which checkpoints have no use for",
                                      static_cast<unsigned char>(code)));
      }
    }
    Node result = pop();
    if (!stack_.empty() || !marks_.empty()) throw PickleError("it leaves more than one value");
    return result;
  }

 private:
  // What is read.

  std::string_view take(uint64_t count) {
    if (count > rest_.size()) throw PickleError("it ends too early");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view line() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) throw PickleError("it ends too early");
    const std::string_view text = take(end);
    take(1);
    return text;
  }

  // The stack.

  Node push(PickleValue value) {
    stack_.push_back(std::make_shared<PickleValue>(std::move(value)));
    return stack_.back();
  }
  void push_text(Kind kind, std::string_view text) { push({.kind = kind, .text = std::string(text), .items = {}}); }

  void need(size_t count) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) throw PickleError("it takes more values than it made");
  }
  Node pop() {
    need(1);
    Node value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    need(1);
    return *stack_.back();
  }
  /// All values above the last mark, which goes too.
  std::vector<Node> pop_to_mark() {
    if (marks_.empty()) throw PickleError("it closes a list that it did not open");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Node> values(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  std::vector<Node> pop_some(size_t count) {
    need(count);
    std::vector<Node> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }

  /// `owner` gets `items` after those it has. Values inside another are never changed again, so none can hold itself.
  static void add(PickleValue& owner, std::vector<Node> items) {
    if (owner.frozen) throw PickleError("it changes a value that another one already holds");
    for (Node& item : items) {
      item->frozen = true;
      owner.depth = std::max(owner.depth, item->depth + 1);
      owner.items.push_back(std::move(item));
    }
    if (owner.depth > kMaximumDepth) throw PickleError("its values are nested too deep");
  }

  void push_tuple(std::vector<Node> items) {
    add(*push({.kind = Kind::tuple, .text = {}, .items = {}}), std::move(items));
  }

  PickleValue& top_of(Kind kind, const char* what) {
    if (!top().is(kind)) throw PickleError(fmt::format("it adds to something that is no {}", what));
    return top();
  }

  // Instructions, by family; false: not of this family.

  bool scalar(char code) {
    switch (static_cast<unsigned char>(code)) {
      case 'N':
        push({});
        return true;
      case 0x88:
        push({.kind = Kind::boolean, .integer = 1, .text = {}, .items = {}});
        return true;
      case 0x89:
        push({.kind = Kind::boolean, .text = {}, .items = {}});
        return true;
      case 'J':
        push_integer(number<int32_t>());
        return true;
      case 'K':
        push_integer(number<uint8_t>());
        return true;
      case 'M':
        push_integer(number<uint16_t>());
        return true;
      case 0x8a:
        push_integer(long_integer(number<uint8_t>()));
        return true;
      case 'G': {
        const double value = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
        push({.kind = Kind::real, .real = value, .text = {}, .items = {}});
        return true;
      }
      case 'X':
        push_text(Kind::text, take(number<uint32_t>()));
        return true;
      case 0x8c:
        push_text(Kind::text, take(number<uint8_t>()));
        return true;
      case 0x8d:
        push_text(Kind::text, take(number<uint64_t>()));
        return true;
      case 'B':
        push_text(Kind::bytes, take(number<uint32_t>()));
        return true;
      case 'C':
        push_text(Kind::bytes, take(number<uint8_t>()));
        return true;
      case 0x8e:
        push_text(Kind::bytes, take(number<uint64_t>()));
        return true;
      default:
        return false;
    }
  }

  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value, .text = {}, .items = {}}); }

  /// Two's complement, little-endian, `count` bytes.
  int64_t long_integer(size_t count) {
    if (count > sizeof(int64_t)) throw PickleError("it holds an integer of more than 64 bits");
    const std::string_view digits = take(count);
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    const auto unused = static_cast<int>(64 - 8 * count);
    return count == 0 ? 0 : static_cast<int64_t>(value << unused) >> unused;
  }

  bool container(char code) {
    switch (static_cast<unsigned char>(code)) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        push_tuple({});
        return true;
      case 't':
        push_tuple(pop_to_mark());
        return true;
      case 0x85:
        push_tuple(pop_some(1));
        return true;
      case 0x86:
        push_tuple(pop_some(2));
        return true;
      case 0x87:
        push_tuple(pop_some(3));
        return true;
      case ']':
        push({.kind = Kind::list, .text = {}, .items = {}});
        return true;
      case '}':
        push({.kind = Kind::dictionary, .text = {}, .items = {}});
        return true;
      case 'a':
        append(pop_some(1));
        return true;
      case 'e':
        append(pop_to_mark());
        return true;
      case 's':
        set_items(pop_some(2));
        return true;
      case 'u':
        set_items(pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void append(std::vector<Node> items) { add(top_of(Kind::list, "list"), std::move(items)); }
  void set_items(std::vector<Node> items) {
    if (items.size() % 2 != 0) throw PickleError("it gives a key without a value");
    add(top_of(Kind::dictionary, "dictionary"), std::move(items));
  }

  bool memo(char code) {
    switch (static_cast<unsigned char>(code)) {
      case 0x80:
        number<uint8_t>();
        return true;  // the protocol: instructions say enough
      case 0x95:
        number<uint64_t>();
        return true;  // the length of what follows
      case 'q':
        remember(number<uint8_t>());
        return true;
      case 'r':
        remember(number<uint32_t>());
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
        recall(number<uint8_t>());
        return true;
      case 'j':
        recall(number<uint32_t>());
        return true;
      default:
        return false;
    }
  }

  void remember(uint64_t place) {
    need(1);
    memo_[place] = stack_.back();
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) throw PickleError("it recalls a value that it did not store");
    stack_.push_back(found->second);
  }

  bool object(char code) {
    switch (static_cast<unsigned char>(code)) {
      case 'c': {
        const std::string module(line());
        push_global(module + ' ' + std::string(line()));
        return true;
      }
      case 0x93: {
        const std::vector<Node> names = pop_some(2);
        if (!names[0]->is(Kind::text) || !names[1]->is(Kind::text)) throw PickleError("it names a type by no text");
        push_global(names[0]->text + ' ' + names[1]->text);
        return true;
      }
      case 'R':
      case 0x81: {
        const std::vector<Node> parts = pop_some(2);
        make_object(parts[0], parts[1]);
        return true;
      }
      case 'b': {
        Node state = pop();
        if (top().is(Kind::dictionary)) return true;  // attributes of a state dictionary: versions of its modules
        if (!top().is(Kind::object) || top().items.size() != 1)
          throw PickleError("it fills something that is no object");
        add(top(), {std::move(state)});
        return true;
      }
      case 'Q': {
        Node id = pop();
        add(*push({.kind = Kind::persistent, .text = {}, .items = {}}), {std::move(id)});
        return true;
      }
      default:
        return false;
    }
  }

  void push_global(std::string name) {
    if (!is_known_name(name)) {
      std::replace(name.begin(), name.end(), ' ', '.');
      throw PickleError(fmt::format("it asks for {}, which no checkpoint needs; nothing was executed", name));
    }
    push({.kind = Kind::global, .text = std::move(name), .items = {}});
  }

  /// What calling `type` would make, as data.
  void make_object(const Node& type, Node arguments) {
    if (!type->is(Kind::global) || !arguments->is(Kind::tuple)) throw PickleError("it calls something that is no type");
    const std::string& name = type->text;
    if (name == "torch Size") {
      if (arguments->items.size() != 1 || !arguments->items[0]->is(Kind::tuple))
        throw PickleError("a size is no tuple");
      push(*arguments->items[0]).get()->frozen = false;
    } else if (name == "collections OrderedDict" && arguments->items.empty()) {
      push({.kind = Kind::dictionary, .text = {}, .items = {}});
    } else if (name == "_codecs encode") {
      const auto& items = arguments->items;
      const bool fits = items.size() == 2 && items[0]->is(Kind::text) && items[1]->text == "latin1";
      if (!fits) throw PickleError("it spells bytes in an unknown way");
      push_text(Kind::bytes, latin1_bytes(items[0]->text));
    } else if (name.ends_with(" getattr")) {
      make_member(*arguments);
    } else {
      add(*push({.kind = Kind::object, .text = name, .items = {}}), {std::move(arguments)});
    }
  }

  /// A member of an enumeration asked for by name: the enumeration's object of that name.
  void make_member(const PickleValue& arguments) {
    const auto& items = arguments.items;
    const bool fits = items.size() == 2 && items[0]->is(Kind::global) &&
                      items[0]->text.ends_with(" _MEM_FORMAT_ENCODING") && items[1]->is(Kind::text);
    if (!fits) throw PickleError("it calls builtins.getattr, which no checkpoint needs; nothing was executed");
    auto name = std::make_shared<PickleValue>();
    name->kind = Kind::tuple;
    name->items = {items[1]};
    add(*push({.kind = Kind::object, .text = items[0]->text, .items = {}}), {std::move(name)});
  }

  std::string_view rest_;
  std::vector<Node> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint64_t, Node> memo_;
};

}  // namespace

PickleRef read_pickle(std::string_view bytes) { return Machine(bytes).run(); }

}  // namespace titan
