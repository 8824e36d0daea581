#include "titan/plan/architecture.h"

#include <algorithm>
#include <array>

#include "titan/base/error.h"
#include "titan/plan/llama.h"
#include "titan/plan/qwen.h"

namespace titan {

bool Architecture::has_flavor(std::string_view name, std::string_view flavor) const {
  const std::vector<std::string> known = flavors(name);
  return flavor == kCustomFlavor || std::find(known.begin(), known.end(), flavor) != known.end();
}

std::span<const Architecture* const> architectures() {
  static const std::array<const Architecture*, 2> all{&llama_architecture(), &qwen_architecture()};
  return all;
}

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture* architecture : architectures()) {
    const std::vector<std::string> names = architecture->names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return architecture;
  }
  return nullptr;
}

ModelDescription describe_model(const ModelRequest& request) {
  const Architecture* architecture = find_architecture(request.model.name);
  TITAN_CHECK(architecture != nullptr, request.model.name);
  return architecture->describe(request);
}

}  // namespace titan
