// A failure as words that one rank tells the others, so that all of them go on or end together.
#pragma once

#include <string>

#include "titan/base/error.h"

namespace titan {

/// What the storage or the files would not do; empty when `act` succeeded. A broken promise of this program is thrown
/// on.
template <class Act>
std::string problem_of(const Act& act) {
  try {
    act();
    return {};
  } catch (const InvariantError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace titan
