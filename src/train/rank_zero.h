// Choices that depend on the machine of one rank, and that all ranks must make alike.
#pragma once

#include <string>

#include "titan/distributed/world.h"

namespace titan {

/// Collective: the number from 0 to `most` that rank 0 passes as `own`. `key` names the choice in the store, once in a
/// run. Throws Error(peer_failure) if the store holds something else.
int64_t as_on_rank_0(const World& world, const std::string& key, int64_t own, int64_t most);

}  // namespace titan
