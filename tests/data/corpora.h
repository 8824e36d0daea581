// Small corpora for the tests of sources.
#pragma once

#include <string>

#include "titan/data/document_source.h"

namespace titan {

/// Lines of JSON whose texts are `prefix` with a number, an empty line after every third.
inline std::string records(int count, const std::string& prefix = "d") {
  std::string lines;
  for (int i = 0; i < count; ++i) lines += "{\"text\": \"" + prefix + std::to_string(i) + "\"}\n" + (i % 3 ? "" : "\n");
  return lines;
}

/// Of that path.
inline DatasetOptions text(const std::string& path) {
  DatasetOptions options;
  options.dataset = "text";
  options.path = path;
  return options;
}

}  // namespace titan
