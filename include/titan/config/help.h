// The schema as text: --help, `config explain`, and the tables of docs/configuration.md. Pure functions of the schema;
// a test compares docs/configuration.md with docs_text.
#pragma once

#include <string>
#include <string_view>

#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// Options by section with type, meaning and defaults, at most 120 columns; only sections whose names begin with
/// `section`.
std::string help_text(const Schema& schema, std::string_view section = {});

/// Everything known about one option or former spelling (which must exist). With `loaded`, also its value and origin.
std::string explain_text(const Schema& schema, std::string_view key, const LoadedConfig* loaded = nullptr);

/// Markdown tables of all options and all former spellings, for docs/configuration.md.
std::string docs_text(const Schema& schema);

}  // namespace titan
