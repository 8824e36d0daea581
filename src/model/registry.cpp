#include <algorithm>
#include <array>

#include "llama/exchange.h"
#include "titan/model/llama/llama.h"
#include "titan/model/model.h"

namespace titan {

std::span<const ModelFamily* const> model_families() {
  static const std::array<const ModelFamily*, 1> families{&llama_family()};
  return families;
}

const ModelFamily* find_model_family(std::string_view name) {
  for (const ModelFamily* family : model_families()) {
    const std::vector<std::string> names = family->names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return family;
  }
  return nullptr;
}

const ModelExchange* find_model_exchange(std::string_view name) {
  return find_model_family(name) == &llama_family() ? &llama_exchange() : nullptr;
}

}  // namespace titan
