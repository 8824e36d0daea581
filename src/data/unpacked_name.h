// The name that a packed file has once it is unpacked. Private to data.
#pragma once

#include <filesystem>

#include "titan/data/byte_reader.h"

namespace titan {

/// a.jsonl.gz → a.jsonl; a name without a packing's extension is itself.
inline std::filesystem::path unpacked_name(const std::filesystem::path& path) {
  return packing_of(path) == Packing::none ? path : path.parent_path() / path.stem();
}

}  // namespace titan
