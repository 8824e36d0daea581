// The schema as text for people: --help, `config explain`, and the tables of docs/configuration.md.
// Pure functions of the schema; a test compares the page with what docs_text says, so the two cannot part.
#pragma once

#include <string>
#include <string_view>

#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// Options by section with type, meaning and defaults, at most 120 columns; only sections that begin with `section`.
std::string help_text(const Schema& schema, std::string_view section = {});

/// Everything known about one option or former spelling (which must exist). With `loaded`, its value there and where
/// from.
std::string explain_text(const Schema& schema, std::string_view key, const LoadedConfig* loaded = nullptr);

/// Markdown tables of all options and all former spellings, as docs/configuration.md holds them.
std::string docs_text(const Schema& schema);

}  // namespace titan
