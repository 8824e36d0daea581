// Every option of a job and every former spelling, described once. The typed config, readers, help, documentation and
// completion are derived from it. Immutable after construction (well under 1 ms); `main` makes one and passes it on.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/alias.h"
#include "titan/config/job_config.h"
#include "titan/config/option.h"

namespace titan {

struct SectionInfo {
  std::string name;  ///< "quantize.linear.float8"
  std::string description;
};

class Schema {
 public:
  Schema();
  Schema(const Schema&) = delete;  // look-ups return pointers into it
  Schema& operator=(const Schema&) = delete;

  const std::vector<SectionInfo>& sections() const { return sections_; }
  /// All options in the order in which help lists them: by section, then as declared.
  const std::deque<Option>& options() const { return options_; }
  const std::vector<Alias>& aliases() const { return aliases_; }

  const Option* find(std::string_view key) const;
  const Alias* find_alias(std::string_view key) const;
  /// True if a file may contain a table `name`: a section, a parent of one, or the section of a former spelling.
  bool is_section(std::string_view name) const;

  /// Keys most similar to a mistyped one, best first, current and former spellings alike.
  std::vector<std::string> suggest(std::string_view key, size_t limit = 3) const;
  std::vector<std::string> suggest_section(std::string_view name) const;
  /// The keys that `prefix` may mean: exact, else current keys that begin with it, else former ones.
  std::vector<std::string> completions(std::string_view prefix) const;
  /// The current option of a current or former spelling.
  std::string current_key(const std::string& key) const;
  /// "training.steps", or for a former spelling "training.local_batch_size (formerly training.batch_size)".
  std::string display_name(const std::string& key) const;

  // The files that describe the options (schema_*.cpp) call these.
  void add_section(std::string name, std::string description);
  Option& add(Option option);
  /// The options described so far in a section, to set a property of all of them.
  std::vector<std::reference_wrapper<Option>> section_options(std::string_view section);
  void add_alias(Alias alias);

 private:
  std::vector<SectionInfo> sections_;
  std::deque<Option> options_;
  std::vector<Alias> aliases_;
  std::map<std::string, const Option*, std::less<>> option_by_key_;
  std::map<std::string, size_t, std::less<>> alias_by_key_;
};

/// The config without a file and without overrides.
JobConfig default_config(const Schema& schema, Generation generation = Generation::last_2026);
JobConfig default_config(Generation generation = Generation::last_2026);

}  // namespace titan
