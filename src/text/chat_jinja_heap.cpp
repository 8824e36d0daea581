#include <algorithm>
#include <utility>

#include "chat_jinja_value.h"

namespace titan::jinja {

void TracedText::append(std::string_view bytes, size_t from) {
  if (bytes.empty()) return;
  if (spans.empty() || spans.back().from != from) spans.push_back({0, from});
  text += bytes;
  spans.back().end = text.size();
}

void Heap::charge(size_t bytes) {
  if (bytes > bytes_) unsupported("a template that needs this much memory");
  bytes_ -= bytes;
}

void Heap::work(size_t amount) {
  if (amount > work_) unsupported("a template that runs this long");
  work_ -= amount;
}

Value Heap::view(std::string_view bytes, size_t from) {
  charge(sizeof(Text) + 2 * sizeof(TracedText::Span));
  texts_.push_back({bytes, {}});
  if (!bytes.empty()) texts_.back().spans.push_back({bytes.size(), from});
  Value value(Kind::text);
  value.text = &texts_.back();
  return value;
}

Value Heap::text(TracedText text) {
  charge(sizeof(Text) + sizeof(std::string));
  buffers_.push_back(std::move(text.text));
  texts_.push_back({buffers_.back(), std::move(text.spans)});
  Value value(Kind::text);
  value.text = &texts_.back();
  return value;
}

Value Heap::part(const Value& text, size_t begin, size_t end) {
  const Text& whole = *text.text;
  Value value = view(whole.bytes.substr(begin, end - begin));
  value.safe = text.safe;
  std::vector<TracedText::Span>& spans = texts_.back().spans;
  spans.clear();
  const auto ends_before = [](const TracedText::Span& span, size_t at) { return span.end <= at; };
  for (auto span = std::lower_bound(whole.spans.begin(), whole.spans.end(), begin, ends_before);
       span != whole.spans.end() && begin < end; ++span) {
    if (!spans.empty()) charge(sizeof *span);
    spans.push_back({std::min(span->end, end) - (end - value.text->bytes.size()), span->from});
    begin = span->end;
  }
  return value;
}

Value Heap::sequence(Kind kind, Items items, std::string_view name) {
  charge(sizeof(Sequence) + items.size() * sizeof(Value));
  sequences_.push_back({std::move(items), name});
  Value value(kind);
  value.sequence = &sequences_.back();
  return value;
}

Value Heap::dictionary(Kind kind) {
  charge(sizeof(Dictionary));
  dictionaries_.emplace_back();
  Value value(kind);
  value.members = &dictionaries_.back();
  return value;
}

Value Heap::undefined(std::string_view name) {
  Value value = view(name);
  value.kind = Kind::undefined;
  return value;
}

Value Heap::loop(const Loop& loop) {
  charge(sizeof loop);
  loops_.push_back(loop);
  Value value(Kind::loop);
  value.loop = &loops_.back();
  return value;
}

Value Heap::function(const Function& function) {
  charge(sizeof function);
  functions_.push_back(function);
  Value value(Kind::function);
  value.function = &functions_.back();
  return value;
}

Scope* Heap::enter(Scope* outer) {
  if (free_scopes_.empty()) {
    charge(sizeof(Scope) + 8 * sizeof(std::pair<std::string_view, Value>));
    scopes_.emplace_back();
    free_scopes_.push_back(&scopes_.back());
  }
  Scope* const scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->outer = outer;
  return scope;
}

void Heap::leave(Scope* scope) {
  scope->ended = true;
  if (scope->captured) return;
  scope->ended = false;
  scope->names.clear();
  free_scopes_.push_back(scope);
}

void Heap::put(TracedText& to, std::string_view bytes, size_t from) {
  charge(bytes.size());
  work(bytes.size() / 64);
  if (!bytes.empty() && (to.spans.empty() || to.spans.back().from != from)) charge(sizeof(TracedText::Span));
  to.append(bytes, from);
}

void Heap::put(TracedText& to, const Text& more) {
  size_t begin = 0;
  for (const TracedText::Span& span : more.spans) {
    put(to, more.bytes.substr(begin, span.end - begin), span.from);
    begin = span.end;
  }
}

// Dictionaries.

std::optional<size_t> Dictionary::place_of(Heap& heap, const Value& key) const {
  const auto [begin, end] = index_.equal_range(hash_of(key));
  for (auto at = begin; at != end; ++at) {
    heap.work();
    if (equal(heap, entries_[at->second].first, key)) return at->second;
  }
  return std::nullopt;
}

const Value* Dictionary::find(Heap& heap, const Value& key) const {
  const std::optional<size_t> place = place_of(heap, key);
  if (place && *place < read_.size()) read_[*place] = true;
  return place ? &entries_[*place].second : nullptr;
}

void Dictionary::be_message(size_t number) {
  message_ = number;
  all_read_ = false;
  read_.assign(entries_.size(), false);
}

void Dictionary::set(Heap& heap, const Value& key, const Value& value) {
  if (const std::optional<size_t> place = place_of(heap, key)) {
    entries_[*place].second = value;
    return;
  }
  heap.charge(sizeof(std::pair<Value, Value>) + 8 * sizeof(size_t));
  index_.emplace(hash_of(key), entries_.size());
  entries_.emplace_back(key, value);
}

}  // namespace titan::jinja
