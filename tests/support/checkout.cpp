#include "support/checkout.h"

namespace titan {

std::filesystem::path checkout() { return TITAN_SOURCE_DIR; }

}  // namespace titan
