// A former or foreign spelling of an option, and how its value becomes one of today's.
// Owned by the schema (alias.cpp describes all of them). A mere renaming needs two keys; a change of meaning brings a
// conversion, which runs after everything plain has its value and may look at that.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/option.h"
#include "titan/config/value.h"

namespace titan {

/// What a conversion may look at: the values as they stand after everything plain has been read.
class Settings;

/// One option that a converted spelling sets.
struct Assignment {
  std::string key;
  Value value;
  bool extends = false;  ///< adds to what is there (a list that grew); never in conflict with a value given for `key`
};

/// Result of a conversion: assignments, or what is wrong.
struct Conversion {
  std::vector<Assignment> assignments;
  std::string wrong;
  std::string remedy;
};

struct Alias {
  std::string key;     ///< the former spelling
  std::string target;  ///< the option that took its place (the main one, when it sets several)
  Era era = Era::early;
  std::string change;                  ///< for a reader: "inverted", "true means fused"; empty for a mere renaming
  ValueType type{};                    ///< of the former spelling; for a mere renaming that of the target
  std::vector<std::string> choices{};  ///< of the former spelling
  std::function<Conversion(const Value&, const Settings&)> convert{};  ///< empty: the value is taken over as it is
};

}  // namespace titan
