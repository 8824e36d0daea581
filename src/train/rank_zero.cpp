#include "rank_zero.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "titan/checkpoint/store_barrier.h"

namespace titan {

int64_t as_on_rank_0(const World& world, const std::string& key, int64_t own, int64_t most) {
  if (!world.store || !world.is_distributed()) return own;
  if (world.rank == 0) world.store->set(key, std::to_string(own));
  int64_t agreed = own;
  read_words(world.store->get_to_str(key), 0, [&](const nlohmann::json& said) {
    agreed = said.get<int64_t>();
    if (agreed < 0 || agreed > most) throw std::out_of_range(std::to_string(agreed));
  });
  return agreed;
}

}  // namespace titan
