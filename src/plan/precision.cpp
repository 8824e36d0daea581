#include "titan/plan/precision.h"

namespace titan {

int64_t size_of(ElementType type) { return type == ElementType::float32 ? 4 : 2; }

std::string_view name(ElementType type) { return word_of(type); }

std::string_view name(Float8Recipe recipe) { return word_of(recipe); }

}  // namespace titan
