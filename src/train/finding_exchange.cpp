#include "finding_exchange.h"

#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/report/attempt_record.h"
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

std::string FindingExchange::names_by_rank(const std::vector<std::string>& names,
                                           const std::function<void(const NamedRanks&)>& record) {
  const nlohmann::json mine{{"host", host_name()}, {"names", names}};
  return decide(json_text(mine), [&](const std::vector<std::string>& said) {
    NamedRanks named;
    std::vector<std::string> words_of_ranks;
    for (size_t rank = 0; rank < said.size(); ++rank) {
      read_words(said[rank], rank, [&](const nlohmann::json& words) {
        const auto of_rank = words.at("names").get<std::vector<std::string>>();
        if (of_rank.empty()) return;
        named.ranks.push_back(static_cast<int64_t>(rank));
        named.hosts.push_back(words.at("host").get<std::string>());
        const std::string more = of_rank.size() > 1 ? fmt::format(" and {} more", of_rank.size() - 1) : "";
        words_of_ranks.push_back(fmt::format("{}{} on rank {} ({})", of_rank[0], more, rank, named.hosts.back()));
      });
    }
    named.text = join(words_of_ranks, ", ");
    if (record) record(named);
    return named.text;
  });
}

void record_finding(const Run& run, int64_t step, int64_t last_agreeing, const NamedRanks& named) {
  const CheckpointSection& checkpoint = run.config.checkpoint;
  const std::string problem =
      record_disagreement(run.config.job.dump_folder,
                          {.step = step,
                           .last_agreeing_step = last_agreeing,
                           .ranks = named.ranks,
                           .hosts = named.hosts,
                           .what = named.text,
                           .checkpoint_folder = checkpoint.enable && !checkpoint.load_only ? checkpoint.folder : "",
                           .time = wall_time()});
  if (!problem.empty()) run.log.warning(problem);
}

}  // namespace titan
