// Pieces of work that do not wait for each other, on threads of their own.
#pragma once

#include <cstddef>
#include <functional>

namespace titan {

/// Calls `act(0)` here and `act(1)` to `act(count - 1)` each on a thread of its own, and returns when all have ended.
/// What the first of them (by number) threw is thrown again. A thread that the system does not give is done without.
void side_by_side(size_t count, const std::function<void(size_t)>& act);

}  // namespace titan
