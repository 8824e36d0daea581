// The pickle virtual machine: a stack, a memo, and the opcodes of protocols 2 to 5 that build values. It never calls
// anything.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "titan/base/text.h"
#include "titan/checkpoint/pickle.h"

namespace titan {
namespace {

using Kind = PickleValue::Kind;
using Node = std::shared_ptr<PickleValue>;

constexpr int kMaximumDepth = 100;  // whoever walks or frees a value calls itself for each level

// Sixty pairs, each of which holds the one before twice, are a few hundred bytes and a walk over 2^60 values. What
// Python shares are names and small objects: a walk is a few times as long as the file.
constexpr uint64_t kWalkOfAByte = 64, kWalkOfAnyPickle = uint64_t{1} << 20;

/// The bytes that latin-1 text encodes: protocol 2's form of bytes.
std::string latin1_bytes(std::string_view utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto first = static_cast<unsigned char>(utf8[i]);
    if (first < 0x80) {
      bytes += static_cast<char>(first);
      continue;
    }
    const bool two = (first == 0xC2 || first == 0xC3) && i + 1 < utf8.size();
    if (!two) throw PickleError("its encoded bytes hold a character that is not a byte");
    bytes += static_cast<char>((first & 0x03) << 6 | (static_cast<unsigned char>(utf8[++i]) & 0x3F));
  }
  return bytes;
}

/// Two's complement, little-endian.
int64_t long_integer(std::string_view digits) {
  if (digits.size() > sizeof(int64_t)) throw PickleError("it holds an integer of more than 64 bits");
  uint64_t value = 0;
  for (size_t i = 0; i < digits.size(); ++i) value |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
  const auto unused = static_cast<int>(64 - 8 * digits.size());
  return digits.empty() ? 0 : static_cast<int64_t>(value << unused) >> unused;
}

// Python stores nearly every value in the memo and recalls few of them. A memo of all would keep a large pickle in
// memory as a whole, so only those that an instruction recalls are kept.

/// Walks over instructions without executing any. It needs to know all of `Machine`; at one that is unknown to both the
/// machine stops, and so does the walk.
class MemoScan {
 public:
  explicit MemoScan(std::string_view bytes) : rest_(bytes) {}

  std::unordered_set<uint64_t> recalled_places() {
    std::unordered_set<uint64_t> places;
    while (!rest_.empty()) {
      const char code = rest_.front();
      rest_.remove_prefix(1);
      if (code == '.') break;
      if (code == 'h') {
        places.insert(number<uint8_t>());
      } else if (code == 'j') {
        places.insert(number<uint32_t>());
      } else {
        skip_operand(static_cast<unsigned char>(code));
      }
    }
    return places;
  }

 private:
  void skip(uint64_t count) { rest_.remove_prefix(std::min<uint64_t>(count, rest_.size())); }

  template <class Number>
  Number number() {
    Number value{};
    if (rest_.size() < sizeof value) {
      rest_ = {};
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }

  void skip_line() { skip(std::min(rest_.find('\n'), rest_.size()) + 1); }

  void skip_operand(unsigned char code) {
    switch (code) {
      case 'K':
      case 'q':
      case 0x80:
        return skip(1);
      case 'M':
        return skip(2);
      case 'J':
      case 'r':
        return skip(4);
      case 'G':
      case 0x95:
        return skip(8);
      case 0x8a:
      case 0x8c:
      case 'C':
        return skip(number<uint8_t>());
      case 'X':
      case 'B':
        return skip(number<uint32_t>());
      case 0x8d:
      case 0x8e:
        return skip(number<uint64_t>());
      case 'c':
        skip_line();
        return skip_line();
      default:
        if (kWithoutOperand.find(static_cast<char>(code)) == kWithoutOperand.npos) rest_ = {};
    }
  }

  static constexpr std::string_view kWithoutOperand =
      "N()t]}aesuRbQ"
      "\x81\x85\x86\x87\x88\x89\x93\x94";

  std::string_view rest_;
};

class Machine {
 public:
  Machine(std::string_view bytes, PickleTaker* taker)
      : rest_(bytes),
        spare_bytes_(bytes.size()),
        longest_walk_(kWalkOfAnyPickle + kWalkOfAByte * bytes.size()),
        taker_(taker),
        recalled_(MemoScan(bytes).recalled_places()) {}

  PickleRef run() {
    static const std::array<Instruction, 256> instructions = make_instructions();
    for (;;) {
      const auto code = number<uint8_t>();
      if (code == '.') break;
      if (!instructions[code]) {
        throw PickleError(fmt::format("it uses instruction 0x{:02x}, which checkpoints have no use for", code));
      }
      instructions[code](*this);
    }
    Node result = pop();
    if (!stack_.empty() || !marks_.empty()) throw PickleError("it leaves more than one value");
    return result;
  }

 private:
  using Instruction = void (*)(Machine& machine);
  /// The instruction of each opcode; null for an unknown one.
  static std::array<Instruction, 256> make_instructions();

  // Reading bytes.

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

  PickleValue& push(PickleValue value) {
    stack_.push_back(std::make_shared<PickleValue>(std::move(value)));
    return *stack_.back();
  }
  PickleValue& push(Kind kind, std::string_view text = {}) {
    return push({.kind = kind, .text = std::string(text), .items = {}, .walk = 1 + text.size()});
  }
  void push_integer(int64_t value, Kind kind = Kind::integer) {
    push({.kind = kind, .integer = value, .text = {}, .items = {}});
  }

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
  /// Removes and returns all values above the last mark, and the mark.
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

  /// Appends `items` to those of `owner`. Values inside another are never changed again, so none can contain itself by
  /// way of others; that it is added to itself is asked of each.
  void add(PickleValue& owner, std::vector<Node> items) const {
    if (owner.frozen) throw PickleError("it changes a value that another one already holds: one may hold itself");
    for (Node& item : items) {
      if (item.get() == &owner) throw PickleError("one of its values holds itself");
      item->frozen = true;
      owner.depth = std::max(owner.depth, item->depth + 1);
      owner.walk += item->walk;
      // Asked for each item, so that no sum overflows.
      if (owner.walk > longest_walk_) throw PickleError("its values hold one another in too many places");
      owner.items.push_back(std::move(item));
    }
    if (owner.depth > kMaximumDepth) throw PickleError("its values are nested too deep");
  }

  void push_tuple(std::vector<Node> items) { add(push(Kind::tuple), std::move(items)); }

  PickleValue& top_of(Kind kind, const char* what) {
    if (!top().is(kind)) throw PickleError(fmt::format("it adds to something that is not a {}", what));
    return top();
  }

  // The instructions.

  void append(std::vector<Node> items) {
    PickleValue& list = top_of(Kind::list, "list");
    if (taker_ && !list.frozen) {
      std::erase_if(items, [&](const Node& item) { return taker_->take_item(list, *item); });
    }
    add(list, std::move(items));
  }
  void set_items(std::vector<Node> items) {
    if (items.size() % 2 != 0) throw PickleError("it gives a key without a value");
    PickleValue& dictionary = top_of(Kind::dictionary, "dictionary");
    if (taker_ && !dictionary.frozen) {
      std::vector<Node> kept;
      for (size_t i = 0; i < items.size(); i += 2) {
        if (taker_->take_pair(dictionary, *items[i], *items[i + 1])) continue;
        kept.push_back(std::move(items[i]));
        kept.push_back(std::move(items[i + 1]));
      }
      items = std::move(kept);
    }
    add(dictionary, std::move(items));
  }

  void remember(uint64_t place) {
    need(1);
    ++remembered_;
    if (recalled_.contains(place)) memo_[place] = stack_.back();
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) throw PickleError("it recalls a value that it did not store");
    stack_.push_back(found->second);
  }

  void fill_object(Node state) {
    if (top().is(Kind::dictionary)) return;  // attributes of a state dict: versions of its modules
    if (!top().is(Kind::object) || top().items.size() != 1)
      throw PickleError("it fills something that is not an object");
    add(top(), {std::move(state)});
  }

  void push_global(std::string name) {
    if (!is_known_name(name)) {
      std::replace(name.begin(), name.end(), ' ', '.');
      // A NUL byte in the name would end the message.
      throw PickleError(
          fmt::format("it asks for {}, which no checkpoint needs; nothing was executed", printable(name)));
    }
    push(Kind::global, name);
  }

  /// The object that calling `type` would create, as data.
  void make_object(const Node& type, Node arguments) {
    if (!type->is(Kind::global) || !arguments->is(Kind::tuple))
      throw PickleError("it calls something that is not a type");
    const std::string& name = type->text;
    if (name == "torch Size") {
      if (arguments->items.size() != 1 || !arguments->items[0]->is(Kind::tuple))
        throw PickleError("a size is not a tuple");
      // It is copied, and one tuple may be given to many sizes.
      if (arguments->items[0]->items.size() > kMostDimensions) throw PickleError("a size has too many dimensions");
      push(*arguments->items[0]).frozen = false;
    } else if (name == "collections OrderedDict" && arguments->items.empty()) {
      push(Kind::dictionary);
    } else if (name == "_codecs encode") {
      const auto& items = arguments->items;
      const bool fits = items.size() == 2 && items[0]->is(Kind::text) && items[1]->text == "latin1";
      if (!fits) throw PickleError("it spells bytes in an unknown way");
      // Python spells each object of bytes in a text of its own, so all together are no longer than the pickle. A text
      // that is recalled for each call would become many times that.
      if (items[0]->text.size() > spare_bytes_) throw PickleError("it spells more bytes than it has");
      spare_bytes_ -= items[0]->text.size();
      push(Kind::bytes, latin1_bytes(items[0]->text));
    } else if (name.ends_with(" getattr")) {
      make_member(*arguments);
    } else {
      add(push(Kind::object, name), {std::move(arguments)});
    }
  }

  /// A member of an enumeration, requested by name: the enumeration's object of that name.
  void make_member(const PickleValue& arguments) {
    const auto& items = arguments.items;
    const bool fits = items.size() == 2 && items[0]->is(Kind::global) &&
                      items[0]->text.ends_with(" _MEM_FORMAT_ENCODING") && items[1]->is(Kind::text);
    if (!fits) throw PickleError("it calls builtins.getattr, which no checkpoint needs; nothing was executed");
    auto name = std::make_shared<PickleValue>();
    name->kind = Kind::tuple;
    name->items = {items[1]};
    name->depth += items[1]->depth;
    name->walk += items[1]->walk;
    add(push(Kind::object, items[0]->text), {std::move(name)});
  }

  std::string_view rest_;
  size_t spare_bytes_;  // that _codecs.encode may still make
  uint64_t longest_walk_;
  std::vector<Node> stack_;
  std::vector<size_t> marks_;  // stack heights
  PickleTaker* taker_;
  std::unordered_set<uint64_t> recalled_;  // places of the memo from which something is recalled
  std::unordered_map<uint64_t, Node> memo_;
  uint64_t remembered_ = 0;  // the place that MEMOIZE means: Python numbers what it stores
};

std::array<Machine::Instruction, 256> Machine::make_instructions() {
  std::array<Instruction, 256> table{};
  table['N'] = [](Machine& m) { m.push(Kind::none); };
  table[0x88] = [](Machine& m) { m.push_integer(1, Kind::boolean); };
  table[0x89] = [](Machine& m) { m.push_integer(0, Kind::boolean); };
  table['J'] = [](Machine& m) { m.push_integer(m.number<int32_t>()); };
  table['K'] = [](Machine& m) { m.push_integer(m.number<uint8_t>()); };
  table['M'] = [](Machine& m) { m.push_integer(m.number<uint16_t>()); };
  table[0x8a] = [](Machine& m) { m.push_integer(long_integer(m.take(m.number<uint8_t>()))); };
  table['G'] = [](Machine& m) {
    m.push(Kind::real).real = std::bit_cast<double>(__builtin_bswap64(m.number<uint64_t>()));
  };
  table['X'] = [](Machine& m) { m.push(Kind::text, m.take(m.number<uint32_t>())); };
  table[0x8c] = [](Machine& m) { m.push(Kind::text, m.take(m.number<uint8_t>())); };
  table[0x8d] = [](Machine& m) { m.push(Kind::text, m.take(m.number<uint64_t>())); };
  table['B'] = [](Machine& m) { m.push(Kind::bytes, m.take(m.number<uint32_t>())); };
  table['C'] = [](Machine& m) { m.push(Kind::bytes, m.take(m.number<uint8_t>())); };
  table[0x8e] = [](Machine& m) { m.push(Kind::bytes, m.take(m.number<uint64_t>())); };

  table['('] = [](Machine& m) { m.marks_.push_back(m.stack_.size()); };
  table[')'] = [](Machine& m) { m.push_tuple({}); };
  table['t'] = [](Machine& m) { m.push_tuple(m.pop_to_mark()); };
  table[0x85] = [](Machine& m) { m.push_tuple(m.pop_some(1)); };
  table[0x86] = [](Machine& m) { m.push_tuple(m.pop_some(2)); };
  table[0x87] = [](Machine& m) { m.push_tuple(m.pop_some(3)); };
  table[']'] = [](Machine& m) { m.push(Kind::list); };
  table['}'] = [](Machine& m) { m.push(Kind::dictionary); };
  table['a'] = [](Machine& m) { m.append(m.pop_some(1)); };
  table['e'] = [](Machine& m) { m.append(m.pop_to_mark()); };
  table['s'] = [](Machine& m) { m.set_items(m.pop_some(2)); };
  table['u'] = [](Machine& m) { m.set_items(m.pop_to_mark()); };

  table[0x80] = [](Machine& m) { m.take(1); };  // the protocol version, which the instructions make redundant
  table[0x95] = [](Machine& m) { m.take(8); };  // a frame's length, which helps those who read a stream
  table['q'] = [](Machine& m) { m.remember(m.number<uint8_t>()); };
  table['r'] = [](Machine& m) { m.remember(m.number<uint32_t>()); };
  table[0x94] = [](Machine& m) { m.remember(m.remembered_); };
  table['h'] = [](Machine& m) { m.recall(m.number<uint8_t>()); };
  table['j'] = [](Machine& m) { m.recall(m.number<uint32_t>()); };

  table['c'] = [](Machine& m) {
    const std::string module(m.line());
    m.push_global(module + ' ' + std::string(m.line()));
  };
  table[0x93] = [](Machine& m) {
    const std::vector<Node> names = m.pop_some(2);
    if (!names[0]->is(Kind::text) || !names[1]->is(Kind::text))
      throw PickleError("it names a type by something other than text");
    m.push_global(names[0]->text + ' ' + names[1]->text);
  };
  table['R'] = table[0x81] = [](Machine& m) {
    const std::vector<Node> parts = m.pop_some(2);
    m.make_object(parts[0], parts[1]);
  };
  table['b'] = [](Machine& m) { m.fill_object(m.pop()); };
  table['Q'] = [](Machine& m) {
    Node id = m.pop();
    m.add(m.push(Kind::persistent), {std::move(id)});
  };
  return table;
}

}  // namespace

void check_pickle_begin(std::string_view bytes) {
  constexpr char kProtocol = '\x80', kFirst = 2, kLast = 5;
  const bool begins = bytes.size() >= 2 && bytes[0] == kProtocol && bytes[1] >= kFirst && bytes[1] <= kLast;
  if (!begins) throw PickleError("it does not begin as a pickle of protocol 2 to 5");
}

PickleRef read_pickle(std::string_view bytes, PickleTaker* taker) {
  check_pickle_begin(bytes);
  return Machine(bytes, taker).run();
}

}  // namespace titan
