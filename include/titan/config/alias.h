// An alias: a former name of an option, or its name in another program, and the conversion of its value.
// december_2024.cpp declares all of them; a renaming needs only the two keys. Conversions run after all other options
// have their values and may read them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/option.h"
#include "titan/config/value.h"

namespace titan {

/// What a conversion may read: the values of all options that need no conversion.
class Settings;

/// One option that a converted spelling sets.
struct Assignment {
  std::string key;
  Value value;
  bool extends = false;  ///< appends to the list; never conflicts with a value given for `key`
};

/// Result of a conversion: assignments, or what is wrong.
struct Conversion {
  std::vector<Assignment> assignments;
  std::string wrong;
  std::string remedy;
};

struct Alias {
  std::string key;     ///< the former spelling
  std::string target;  ///< the option that replaced it (the main one if it sets several)
  Era era = Era::early;
  std::string change;                  ///< shown to users: "inverted", "true means fused"; empty for a renaming
  ValueType type{};                    ///< of the former spelling; of the target for a renaming
  std::vector<std::string> choices{};  ///< of the former spelling
  std::function<Conversion(const Value&, const Settings&)> convert{};  ///< empty: the value is used unchanged
};

}  // namespace titan
