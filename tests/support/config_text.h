// A config from text, for tests; the program reads files.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/config/given.h"

namespace titan {

/// What load_config says about a file of this text; places show `name` as the file.
inline LoadedConfig load_config_text(const Schema& schema, std::string_view text, const std::string& name,
                                     std::span<const std::string> overrides = {},
                                     std::span<const ConfigCheck> checks = {}) {
  LoadedConfig loaded =
      detail::load_read(schema, detail::read_toml(text, name), detail::read_command_line(schema, overrides), checks);
  loaded.config.job.config_file = name;
  return loaded;
}

}  // namespace titan
