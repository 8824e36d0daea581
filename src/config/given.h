// The command line as option assignments. Private to config. CLI11 splits the words; this part adds unique prefixes,
// `-` for `_`, collection of all problems, and suggestions.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/load.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"
#include "titan/config/settings.h"
#include "titan/config/value.h"

namespace titan::detail {

struct CommandLineWord {
  std::string key;    ///< of an option or a former spelling, as in the schema
  std::string value;  ///< as typed; "true" or "false" for a bare flag
  Place place;        ///< shows the word as typed
};

struct CommandLine {
  std::vector<CommandLineWord> words;      ///< in order; a repeated key occurs repeatedly
  std::optional<std::string> config_file;  ///< the word that is not an option
  std::vector<Problem> problems;
};

CommandLine read_command_line(const Schema& schema, std::span<const std::string> arguments);

// A TOML file as flat entries with positions. Private to config; only its implementation includes toml++. Independent
// of the schema: keys are as in the file, in its order. A syntax error is reported like any other problem.

struct TomlEntry {
  std::string key;  ///< "training.steps"
  Place key_place;
  Place value_place;
  Value value;              ///< none if the file's value has a type that no option has
  std::string unsupported;  ///< in that case its type, such as "a date"
};

struct TomlTable {
  std::string name;  ///< "training.dataloader"
  Place place;
};

struct TomlDocument {
  std::vector<TomlEntry> entries;  ///< in the order of the file
  std::vector<TomlTable> tables;
  std::map<std::string, Place> inside;  ///< positions in arrays of tables: "optimizer.param_groups[0].match"
  std::optional<Problem> syntax_error;  ///< if set, the rest is empty
};

/// Far above any config: stops at a corpus that was given in its place, before toml++ parses it.
inline constexpr size_t kMostTomlBytes = size_t{16} << 20;

/// Places show `name` as the file.
TomlDocument read_toml(std::string_view text, const std::string& name);

// One option as the user gave it, and the checks made on reading it: unknown keys, wrong types, values out of range.
// Private to config.

struct Given {
  const Option* option = nullptr;  ///< the option, or the target of a former spelling
  const Alias* alias = nullptr;    ///< if it has a former spelling
  Value value;                     ///< of the right type; in range unless a problem was reported
  Level level = Level::file;
  Place key_place;
  Place value_place;

  const std::string& spelling() const { return alias != nullptr ? alias->key : option->key; }
  Era era() const { return alias != nullptr ? alias->era : option->era; }
};

/// Collects given options and problems.
class GivenReader {
 public:
  GivenReader(const Schema& schema, std::vector<Problem>& problems) : schema_(schema), problems_(problems) {}

  void read(const TomlDocument& document);
  void read(const CommandLine& command_line);
  const std::vector<Given>& all() const { return given_; }

 private:
  void unknown_key(const TomlEntry& entry);
  bool find(const std::string& key, Given& given) const;
  /// An empty remedy: what the option's type and range say.
  void wrong_type(const Given& given, const std::string& found, std::string remedy = {});
  void add(Given given, const Value& value, const std::string& found, const std::map<std::string, Place>& inside);
  bool fill_records(const Given& given, Value& value, const std::map<std::string, Place>& inside);
  bool fill_record(const Option& option, Record& record, const std::string& element,
                   const std::map<std::string, Place>& inside);
  void problem(const Place& place, const std::string& key, std::string what, std::string remedy);

  const Schema& schema_;
  std::vector<Problem>& problems_;
  std::vector<Given> given_;
};

// Resolves given options into final values: precedence, former spellings, duplicates. Private to config. Runs between
// reading (given.h) and the typed config. Checks which options have an effect, not the range of their values.

/// Sets all given values, the command line over the file, and adds a line for each former spelling with its current
/// name.
void apply_given(const std::vector<Given>& given, Settings& settings, std::vector<Problem>& problems,
                 std::vector<std::string>& renamed);

/// Adds notes for given options without effect, here or in a run of one process, and problems for options that request
/// something unsupported.
void judge_effects(const Schema& schema, const Settings& settings, LoadedConfig& loaded);

// Decides the generation of a config from the given options. Private to config. Runs once per load, before defaults are
// filled in, because they depend on it.

struct GenerationChoice {
  Generation generation;
  std::string reason;  ///< a message that names the option or spelling that decided
};

/// job.generation if given; otherwise December 2024 if the file has a spelling that existed only then and none that
/// came later. A file with both is a problem that names both places.
GenerationChoice decide_generation(const std::vector<Given>& given, std::vector<Problem>& problems);

/// Sets what follows from the generation alone: its name and its formulas.
void set_generation(JobConfig& config, Generation generation);

/// December 2024's default: as many microbatches as stages.
void derive_december_microbatches(Settings& settings);

/// model.from_hf (from_hf.cpp): sets options of the sections model and checkpoint from the config.json.
void apply_hugging_face_config(Settings& settings, std::vector<Problem>& problems, std::vector<std::string>& notes);

/// Does everything that load_config (load.cpp) does except reading the file. Problems of the command line come before
/// those of the document.
LoadedConfig load_read(const Schema& schema, const TomlDocument& document, CommandLine command_line,
                       std::span<const ConfigCheck> checks);

}  // namespace titan::detail
