// The words of a command line as option assignments. Private to config; CLI11 takes the words apart, this part adds
// what it lacks: unique prefixes, `-` for `_`, every problem at once, nearest spellings.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/problem.h"
#include "titan/config/schema.h"
#include "titan/config/settings.h"
#include "titan/config/value.h"

namespace titan::detail {

struct CommandLineWord {
  std::string key;    ///< of an option or of a former spelling, as the schema has it
  std::string value;  ///< as typed; "true" or "false" for a bare flag
  Place place;        ///< names the word as typed
};

struct CommandLine {
  std::vector<CommandLineWord> words;      ///< in order; a repeated key appears again
  std::optional<std::string> config_file;  ///< the word that is no option
  std::vector<Problem> problems;
};

CommandLine read_command_line(const Schema& schema, std::span<const std::string> arguments);

// A TOML file as flat entries with positions. Private to config; the only file that knows toml++ is its implementation.
// It knows no schema: keys are whatever the file says, in its order, and a syntax error is a problem like any other.

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

// One option as the user gave it, and the reading of such: unknown keys, wrong types, values out of range. Private to
// config.

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

/// model.from_hf (from_hf.cpp): what its config.json says, as values of the options of sections model and checkpoint.
void apply_hugging_face_config(Settings& settings, std::vector<Problem>& problems);

}  // namespace titan::detail
