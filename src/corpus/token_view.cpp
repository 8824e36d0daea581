#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "mapped_file.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/corpus/token_file.h"
#include "titan/corpus/widen.h"

namespace titan {
namespace {

/// Calls `visit` with the ids as a pointer to their type.
template <class Visit>
auto visit_ids(const TokenView& view, const Visit& visit) {
  switch (view.type) {
    case IdType::uint8:
      return visit(static_cast<const uint8_t*>(view.data));
    case IdType::int8:
      return visit(static_cast<const int8_t*>(view.data));
    case IdType::uint16:
      return visit(static_cast<const uint16_t*>(view.data));
    case IdType::int16:
      return visit(static_cast<const int16_t*>(view.data));
    case IdType::uint32:
      return visit(static_cast<const uint32_t*>(view.data));
    case IdType::int32:
      return visit(static_cast<const int32_t*>(view.data));
    case IdType::int64:
      return visit(static_cast<const int64_t*>(view.data));
  }
  throw InvariantError(fmt::format("ids of the unknown type {}", static_cast<int>(view.type)));
}

/// Copies ids of any type; one that is no int32 becomes -1.
template <typename Id>
void copy_ids(const Id* from, size_t count, int32_t* to) {
  constexpr int64_t kLast = kMostIds - 1;
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int64_t>(from[i]);
    to[i] = id <= kLast ? static_cast<int32_t>(std::max<int64_t>(id, -1)) : -1;
  }
}

[[noreturn]] void refuse_id(const TokenView& view, size_t index) {
  const int64_t id = view.at(index);
  const std::filesystem::path file = view.file ? *view.file : std::filesystem::path();
  if (view.unverified_place < 0) {
    fail_changed(file,
                 fmt::format("it holds the id {}, and its vocabulary has {} ids: the file was written to while it "
                             "was read",
                             id, view.vocabulary));
  }
  const std::string place = with_thousands(view.unverified_place + static_cast<int64_t>(index));
  if (id < 0 || id >= kMostIds) {
    fail_ids(file, fmt::format("its id {} (counted from 0) is {}, and no tokenizer has such an id", place, id),
             "Get the file again, or make it again with the program that wrote it");
  }
  fail_ids(file,
           fmt::format("its id {} (counted from 0) is {}, and this run's tokenizer has {} ids", place, id,
                       with_thousands(view.vocabulary)),
           "Name the tokenizer that made the file in model.tokenizer_path");
}

}  // namespace

int64_t size_of(IdType type) {
  return visit_ids({.type = type}, [](const auto* ids) { return static_cast<int64_t>(sizeof *ids); });
}

std::string_view name_of(IdType type) {
  switch (type) {
    case IdType::uint8:
      return "uint8";
    case IdType::int8:
      return "int8";
    case IdType::uint16:
      return "uint16";
    case IdType::int16:
      return "int16";
    case IdType::uint32:
      return "uint32";
    case IdType::int32:
      return "int32";
    case IdType::int64:
      return "int64";
  }
  throw InvariantError(fmt::format("ids of the unknown type {}", static_cast<int>(type)));
}

int64_t TokenView::at(size_t index) const {
  TITAN_CHECK(index < size, index, size);
  return visit_ids(*this, [index](const auto* ids) { return static_cast<int64_t>(ids[index]); });
}

TokenView::Outside TokenView::outside() const {
  return visit_ids(*this, [this](const auto* ids) {
    Outside found;
    for (size_t i = 0; i < size; ++i) {
      const auto id = static_cast<int64_t>(ids[i]);
      if (id >= 0 && id < vocabulary) continue;
      if (found.count++ == 0) found.first = i;
    }
    return found;
  });
}

void TokenView::append_to(std::vector<int32_t>& ids) const {
  if (size == 0) return;
  const size_t before = ids.size();
  ids.resize(before + size);
  int32_t* to = ids.data() + before;
  if (type == IdType::uint16) {
    widen(static_cast<const uint16_t*>(data), static_cast<int64_t>(size), to);
  } else if (type == IdType::uint32 || type == IdType::int32) {
    std::memcpy(to, data, size * sizeof *to);  // a uint32 above the largest int32 becomes negative
  } else {
    visit_ids(*this, [&](const auto* from) { copy_ids(from, size, to); });
  }
  uint32_t highest = 0;  // unsigned, so that a negative id is above any vocabulary and one comparison finds both
  for (size_t i = before; i < ids.size(); ++i) highest = std::max(highest, static_cast<uint32_t>(ids[i]));
  if (highest < vocabulary) return;
  for (size_t i = 0; i < size; ++i) {
    if (const int64_t id = at(i); id < 0 || id >= vocabulary) refuse_id(*this, i);
  }
}

}  // namespace titan
