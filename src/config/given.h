// One option as the user gave it, and the reading of such: unknown keys, wrong types, values out of range. Private to
// config.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "titan/config/settings.h"
#include "toml_reader.h"

namespace titan::detail {

struct Given {
  const Option* option = nullptr;  ///< the option, or the target of the former spelling
  const Alias* alias = nullptr;    ///< when it was spelled formerly
  Value value;                     ///< of the right type; in range unless a problem says otherwise
  Level level = Level::file;
  Place key_place;
  Place value_place;

  const std::string& spelling() const { return alias != nullptr ? alias->key : option->key; }
  Era era() const { return alias != nullptr ? alias->era : option->era; }
};

/// Collects what was given and what is wrong with it.
class GivenReader {
 public:
  GivenReader(const Schema& schema, std::vector<Problem>& problems) : schema_(schema), problems_(problems) {}

  void read(const TomlDocument& document);
  void read(const CommandLine& command_line);
  const std::vector<Given>& all() const { return given_; }

 private:
  void unknown_key(const TomlEntry& entry);
  bool find(const std::string& key, Given& given) const;
  void wrong_type(const Given& given, const std::string& found);
  void add(Given given, const Value& value, const std::string& found, const std::map<std::string, Place>& inside);
  bool fill_records(const Given& given, Value& value, const std::map<std::string, Place>& inside);
  bool fill_record(const Option& option, Record& record, const std::string& element,
                   const std::map<std::string, Place>& inside);
  void problem(const Place& place, const std::string& key, std::string what, std::string remedy);

  const Schema& schema_;
  std::vector<Problem>& problems_;
  std::vector<Given> given_;
};

// From what was given to the values that hold: precedence, former spellings, doubles. Private to config.
// The step of loading between reading (given.h) and the typed config: it judges what options mean together with their
// availability, not whether their values are in range.

/// Sets everything given, the command line over the file, and says in one line per former spelling what it is called
/// now.
void apply_given(const std::vector<Given>& given, Settings& settings, std::vector<Problem>& problems,
                 std::vector<std::string>& renamed);

/// Notes for options that were given and do nothing; problems for those that ask for something not offered here.
void judge_effects(const Schema& schema, const Settings& settings, const JobConfig& config,
                   std::vector<Problem>& problems, std::vector<std::string>& notes);

// Which generation a config belongs to, from what was given. Private to config.
// Decided once per load, before any default is filled in, since the defaults depend on it.

struct GenerationChoice {
  Generation generation;
  std::string reason;  ///< in words, with the place that decided
};

/// job.generation when it is given; else December 2024 when the file has a spelling that only December 2024 knew and
/// none that came later. A file with both is a problem that names both places.
GenerationChoice decide_generation(const std::vector<Given>& given, std::vector<Problem>& problems);

}  // namespace titan::detail
