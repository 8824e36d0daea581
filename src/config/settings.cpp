#include "titan/config/settings.h"

#include <utility>

#include "given.h"
#include "titan/base/error.h"

namespace titan {

Settings::Settings(const Schema& schema, Generation generation) : schema_(schema), generation_(generation) {
  for (const Option& option : schema.options()) {
    entries_.emplace(option.key, Entry{option.default_for(generation), Level::default_value});
  }
}

const Value& Settings::value(std::string_view key) const {
  auto found = entries_.find(key);
  TITAN_CHECK(found != entries_.end(), key);
  return found->second.value;
}

Level Settings::level(std::string_view key) const {
  auto found = entries_.find(key);
  TITAN_CHECK(found != entries_.end(), key);
  return found->second.level;
}

void Settings::set(const std::string& key, Value value, Level level, Place place, std::string spelling) {
  TITAN_CHECK(entries_.find(key) != entries_.end(), key);
  entries_[key] = Entry{std::move(value), level};
  if (level != Level::default_value) origins_.set(key, std::move(place), std::move(spelling));
}

JobConfig Settings::config() const {
  JobConfig config;
  for (const Option& option : schema_.options()) {
    if (option.write) option.write(config, value(option.key));
  }
  detail::set_generation(config, generation_);
  return config;
}

}  // namespace titan
