#include "titan/config/schema.h"

#include <algorithm>
#include <utility>

#include "titan/base/error.h"
#include "titan/config/section.h"
#include "titan/config/settings.h"

namespace titan {

Schema::Schema() {
  detail::describe_job(*this);
  detail::describe_model(*this);
  detail::describe_training(*this);
  detail::describe_data(*this);
  detail::describe_optimizer(*this);
  detail::describe_precision(*this);
  detail::describe_parallelism(*this);
  detail::describe_checkpoint(*this);
  detail::describe_debug(*this);
  detail::describe_aliases(*this);
}

void Schema::add_section(std::string name, std::string description) {
  sections_.push_back({std::move(name), std::move(description)});
}

Option& Schema::add(Option option) {
  TITAN_CHECK(option_by_key_.find(option.key) == option_by_key_.end(), option.key);
  Option& stored = options_.emplace_back(std::move(option));
  option_by_key_.emplace(stored.key, &stored);
  return stored;
}

void Schema::add_alias(Alias alias) {
  const Option* target = find(alias.target);
  TITAN_CHECK(target != nullptr && find(alias.key) == nullptr, alias.key, alias.target);
  if (!alias.convert) alias.type = target->type;
  alias_by_key_.emplace(alias.key, aliases_.size());
  aliases_.push_back(std::move(alias));
}

std::vector<std::reference_wrapper<Option>> Schema::section_options(std::string_view section) {
  std::vector<std::reference_wrapper<Option>> found;
  for (Option& option : options_) {
    if (option.section == section) found.emplace_back(option);
  }
  return found;
}

const Option* Schema::find(std::string_view key) const {
  auto found = option_by_key_.find(key);
  return found == option_by_key_.end() ? nullptr : found->second;
}

const Alias* Schema::find_alias(std::string_view key) const {
  auto found = alias_by_key_.find(key);
  return found == alias_by_key_.end() ? nullptr : &aliases_[found->second];
}

bool Schema::is_section(std::string_view name) const {
  std::string prefix = std::string(name) + ".";
  auto below = [&](const std::string& key) { return key.starts_with(prefix); };
  return std::any_of(options_.begin(), options_.end(), [&](const Option& option) { return below(option.key); }) ||
         std::any_of(aliases_.begin(), aliases_.end(), [&](const Alias& alias) { return below(alias.key); });
}

std::vector<std::string> Schema::completions(std::string_view prefix) const {
  if (find(prefix) != nullptr || find_alias(prefix) != nullptr) return {std::string(prefix)};
  std::vector<std::string> keys;
  for (const Option& option : options_) {
    if (option.key.starts_with(prefix)) keys.push_back(option.key);
  }
  if (!keys.empty()) return keys;
  for (const Alias& alias : aliases_) {
    if (alias.key.starts_with(prefix)) keys.push_back(alias.key);
  }
  return keys;
}

std::string Schema::current_key(const std::string& key) const {
  const Alias* alias = find_alias(key);
  return alias == nullptr ? key : alias->target;
}

std::string Schema::display_name(const std::string& key) const {
  const Alias* alias = find_alias(key);
  return alias == nullptr ? key : alias->target + " (formerly " + key + ")";
}

JobConfig default_config(const Schema& schema, Generation generation) { return Settings(schema, generation).config(); }

JobConfig default_config(Generation generation) { return default_config(Schema(), generation); }

}  // namespace titan
