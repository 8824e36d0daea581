// The values of a job during loading: each option's value, origin and level. Owned by the loader; conversions of former
// spellings read it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// The source of a value; later ones in this list override earlier ones.
enum class Level { default_value, file, command_line };

class Settings {
 public:
  Settings(const Schema& schema, Generation generation);

  Generation generation() const { return generation_; }
  const Value& value(std::string_view key) const;
  Level level(std::string_view key) const;
  bool is_set(std::string_view key) const { return level(key) != Level::default_value; }
  /// The value as type T, which must match the schema.
  template <class T>
  const T& get(std::string_view key) const {
    return std::get<T>(value(key));
  }

  /// At Level::default_value this replaces a default that depends on other values; the value then has no origin.
  void set(const std::string& key, Value value, Level level, Place place, std::string spelling);
  const Origins& origins() const { return origins_; }
  /// Writes every bound option into a typed config.
  JobConfig config() const;

 private:
  struct Entry {
    Value value;
    Level level = Level::default_value;
  };
  const Schema& schema_;
  Generation generation_;
  std::map<std::string, Entry, std::less<>> entries_;
  Origins origins_;
};

}  // namespace titan
