// The values of a job while it is being read: what each option holds, who said so and how strongly.
// Owned by the loader; conversions of former spellings look into it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// Who set a value; a later one in this list wins over an earlier one.
enum class Level { default_value, file, command_line };

class Settings {
 public:
  Settings(const Schema& schema, Generation generation);

  Generation generation() const { return generation_; }
  const Value& value(std::string_view key) const;
  Level level(std::string_view key) const;
  bool is_set(std::string_view key) const { return level(key) != Level::default_value; }
  /// The value as a type the schema gives this option.
  template <class T>
  const T& get(std::string_view key) const {
    return std::get<T>(value(key));
  }

  /// At Level::default_value this replaces a default that follows from other values; it then has no origin.
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
