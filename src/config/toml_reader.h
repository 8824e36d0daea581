// A TOML file as flat entries with positions. Private to config; the only file that knows toml++ is its implementation.
// It knows no schema: keys are whatever the file says, in its order, and a syntax error is a problem like any other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/problem.h"
#include "titan/config/value.h"

namespace titan::detail {

struct TomlEntry {
  std::string key;  ///< "training.steps"
  Place key_place;
  Place value_place;
  Value value;              ///< none when the file holds something that no option can be
  std::string unsupported;  ///< then: what it is, such as "a date"
};

struct TomlTable {
  std::string name;  ///< "training.dataloader"
  Place place;
};

struct TomlDocument {
  std::vector<TomlEntry> entries;  ///< in the order of the file
  std::vector<TomlTable> tables;
  std::map<std::string, Place> inside;  ///< of arrays of tables: "optimizer.param_groups[0].match"
  std::optional<Problem> syntax_error;  ///< then the rest is empty
};

/// No config is longer.
inline constexpr size_t kMostTomlBytes = size_t{16} << 20;

/// `name` is what places call the text.
TomlDocument read_toml(std::string_view text, const std::string& name);

}  // namespace titan::detail
