// What was committed: every file with its size and hashes. The last file that is written; a folder with a manifest is a
// checkpoint of ours that was complete.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "titan/checkpoint/hashed_file.h"

namespace titan {

inline constexpr const char* kManifestFile = "manifest.json";

struct Manifest {
  int64_t step = 0;
  std::string run;               // who wrote it
  nlohmann::ordered_json facts;  // what the trainer wants to remember: tokens, layout, …
  std::map<std::string, FileRecord> files;
};

/// JSON whose last member is the hash of all that precedes it.
std::string write_manifest(const Manifest& manifest);
/// Throws DamageError when a bit differs, Error(storage) when a newer program wrote it in another format.
Manifest read_manifest(std::string_view bytes);

}  // namespace titan
