// The dtypes and float8 recipes that a plan distinguishes.
#pragma once

#include <cstdint>
#include <string_view>

namespace titan {

enum class ElementType { float32, bfloat16 };
int64_t size_of(ElementType type);
std::string_view name(ElementType type);

/// The granularity of float8 scales, and which operands are cast.
enum class Float8Recipe {
  tensorwise,          // one scale per tensor; output gradients in e5m2
  rowwise,             // one power-of-two scale per row of each operand; gradients in e4m3 too
  rowwise_with_gw_hp,  // rowwise, but weight gradients are products in the compute dtype, and the weight of the
                       // input-gradient product has one scale
};
/// torchtitan's name of a recipe, and the inverse.
std::string_view name(Float8Recipe recipe);
Float8Recipe float8_recipe(std::string_view name);

}  // namespace titan
