#include "finding_exchange.h"

#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/train/run.h"

namespace titan {

std::string FindingExchange::decide(const std::string& words, const RankBarrier::Decision& decision) {
  const World& world = run_.world;
  if (!barrier_ && !world.is_distributed()) barrier_ = make_lone_barrier();
  if (!barrier_) {
    const std::chrono::seconds timeout(run_.config.comm.train_timeout_seconds);
    barrier_ =
        make_store_barrier(world.store->clone(), "findings", world.rank, world.size,
                           {.timeout = timeout, .response_timeout = timeout, .waits = world.waits, .report = {}});
  }
  return barrier_->decide(words, decision);
}

std::string FindingExchange::names_by_rank(const std::vector<std::string>& names) {
  const nlohmann::json mine{{"host", host_name()}, {"names", names}};
  return decide(json_text(mine), [](const std::vector<std::string>& said) {
    std::vector<std::string> found;
    for (size_t rank = 0; rank < said.size(); ++rank) {
      read_words(said[rank], rank, [&](const nlohmann::json& words) {
        const auto of_rank = words.at("names").get<std::vector<std::string>>();
        if (of_rank.empty()) return;
        const std::string more = of_rank.size() > 1 ? fmt::format(" and {} more", of_rank.size() - 1) : "";
        found.push_back(
            fmt::format("{}{} on rank {} ({})", of_rank[0], more, rank, words.at("host").get<std::string>()));
      });
    }
    return join(found, ", ");
  });
}

}  // namespace titan
