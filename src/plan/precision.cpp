#include "titan/plan/precision.h"

#include <algorithm>
#include <array>

#include "titan/base/error.h"

namespace titan {
namespace {

struct NamedRecipe {
  Float8Recipe recipe;
  std::string_view name;
};
constexpr std::array<NamedRecipe, 3> kRecipes{{{Float8Recipe::tensorwise, "tensorwise"},
                                               {Float8Recipe::rowwise, "rowwise"},
                                               {Float8Recipe::rowwise_with_gw_hp, "rowwise_with_gw_hp"}}};

}  // namespace

int64_t size_of(ElementType type) { return type == ElementType::float32 ? 4 : 2; }

std::string_view name(ElementType type) { return type == ElementType::float32 ? "float32" : "bfloat16"; }

std::string_view name(Float8Recipe recipe) {
  return std::find_if(kRecipes.begin(), kRecipes.end(), [&](const auto& entry) { return entry.recipe == recipe; })
      ->name;
}

Float8Recipe float8_recipe(std::string_view name) {
  for (const NamedRecipe& entry : kRecipes) {
    if (entry.name == name) return entry.recipe;
  }
  throw InvariantError(fmt::format("internal error: no float8 recipe {}", name));
}

}  // namespace titan
