#include "titan/distributed/rank_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "titan/base/error.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using Json = nlohmann::json;

constexpr int kLauncherCode = static_cast<int>(ExitCode::launcher);
// A rank with another file differs in most of its options, and the first few show that.
constexpr size_t kDifferencesShown = 3;

/// "/training/seq_len" → "training.seq_len".
std::string option_name(std::string pointer) {
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(std::min<size_t>(1, pointer.size()));
}

/// The options that differ, with both values: "training.seq_len is 64 there and 128 on rank 0".
std::string config_difference(const std::string& theirs, const std::string& zeros) {
  const Json their_config = parse_json(theirs, /*allow_exceptions=*/false);
  const Json zero_config = parse_json(zeros, /*allow_exceptions=*/false);
  if (their_config.is_discarded() || zero_config.is_discarded()) return "one of the two cannot be read";
  std::vector<std::string> shown;
  const Json difference = Json::diff(zero_config, their_config);
  for (const Json& edit : difference) {
    const Json::json_pointer place(edit.at("path").get<std::string>());
    if (shown.size() == kDifferencesShown) {
      shown.push_back(fmt::format("and {} more", difference.size() - kDifferencesShown));
      break;
    }
    const std::string there = their_config.contains(place) ? their_config.at(place).dump() : "not given";
    const std::string here = zero_config.contains(place) ? zero_config.at(place).dump() : "not given";
    shown.push_back(fmt::format("{} is {} there and {} on rank 0", option_name(place.to_string()), there, here));
  }
  return join(shown, ", ");
}

std::pair<std::string, std::string> host_of(const RankFacts& facts) { return {facts.host, facts.machine}; }

Refusal one_gpu_for_two(const RankFacts& one, const RankFacts& other) {
  return {kLauncherCode, fmt::format("{} and {} both use {} (GPU {}); give every rank a GPU of its own (LOCAL_RANK, "
                                     "CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)",
                                     one.name(), other.name(), other.device, other.device_uuid)};
}

std::string ranks_in_words(const std::vector<int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + number_list(ranks);
}

}  // namespace

bool is_failure_code(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::bad_config:
    case ExitCode::bad_data:
    case ExitCode::launcher:
    case ExitCode::bug:
    case ExitCode::out_of_memory:
    case ExitCode::non_finite:
    case ExitCode::storage:
    case ExitCode::peer_failure:
    case ExitCode::requeue:
    case ExitCode::hang:
    case ExitCode::silent_corruption:
    case ExitCode::interrupted:
      return true;
    case ExitCode::success:
    case ExitCode::not_started:
      return false;
  }
  return false;
}

std::string number_list(const std::vector<int64_t>& numbers) {
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - begin < 3) end = begin + 1;
    runs.push_back(end - begin == 1 ? std::to_string(numbers[begin])
                                    : fmt::format("{} to {}", numbers[begin], numbers[end - 1]));
    begin = end;
  }
  if (runs.size() < 2) return join(runs, "");
  const std::string last = runs.back();
  runs.pop_back();
  return join(runs, ", ") + " and " + last;
}

std::string RankFacts::name() const { return fmt::format("rank {} ({}, process {})", rank, host, process); }

std::optional<NamedRank> rank_named_in(std::string_view text) {
  constexpr std::string_view kBegin = "rank ", kProcess = ", process ";
  if (!text.starts_with(kBegin)) return std::nullopt;
  text.remove_prefix(kBegin.size());
  NamedRank named;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), named.rank);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  const size_t process = text.find(kProcess);
  if (!text.starts_with(" (") || process == text.npos) return std::nullopt;
  named.host = text.substr(2, process - 2);
  return named;
}

std::string RankFacts::to_json() const {
  return Json{{"rank", rank},
              {"size", size},
              {"host", host},
              {"machine", machine},
              {"local_rank", local_rank},
              {"local_size", local_size},
              {"gpus", gpus},
              {"process", process},
              {"device", device},
              {"uuid", device_uuid},
              {"cores", cores},
              {"threads", threads},
              {"host_cores", host_cores},
              {"quota", quota},
              {"quota_group", quota_group},
              {"program", program},
              {"config", config},
              {"problem", problem},
              {"code", problem_code}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<RankFacts> RankFacts::from_json(std::string_view text) {
  try {
    const Json json = parse_json(text);
    RankFacts facts;
    json.at("rank").get_to(facts.rank);
    json.at("size").get_to(facts.size);
    json.at("host").get_to(facts.host);
    json.at("machine").get_to(facts.machine);
    json.at("local_rank").get_to(facts.local_rank);
    json.at("local_size").get_to(facts.local_size);
    json.at("gpus").get_to(facts.gpus);
    json.at("process").get_to(facts.process);
    json.at("device").get_to(facts.device);
    json.at("uuid").get_to(facts.device_uuid);
    json.at("cores").get_to(facts.cores);
    json.at("host_cores").get_to(facts.host_cores);
    json.at("quota").get_to(facts.quota);
    json.at("quota_group").get_to(facts.quota_group);
    json.at("threads").get_to(facts.threads);
    json.at("program").get_to(facts.program);
    json.at("config").get_to(facts.config);
    json.at("problem").get_to(facts.problem);
    json.at("code").get_to(facts.problem_code);
    if (!facts.problem.empty() && !is_failure_code(facts.problem_code)) return std::nullopt;
    return facts;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

RankCheck::RankCheck(RankFacts zero) : ranks_(static_cast<size_t>(std::max<int64_t>(1, zero.size))) {
  count(zero, 1);
  ranks_[0] = std::move(zero);
  present_ = 1;
}

void RankCheck::count(const RankFacts& facts, int64_t sign) {
  const Host host = host_of(facts);
  on_host_[host] += sign;
  on_cores_[{host, facts.cores}] += sign;
  in_quota_group_[{host, facts.quota_group}] += sign;
  if (facts.device_uuid.empty()) return;
  if (sign > 0) rank_on_gpu_.emplace(std::pair(host, facts.device_uuid), facts.rank);
  if (sign < 0) rank_on_gpu_.erase({host, facts.device_uuid});
}

std::optional<Refusal> RankCheck::disagreement(const RankFacts& facts) const {
  const RankFacts& zero = *ranks_[0];
  auto refuse = [](std::string text) { return Refusal{kLauncherCode, std::move(text)}; };
  if (facts.size != zero.size) {
    return refuse(fmt::format("{} was started as one of {} ranks, {} as one of {}; start all ranks with one command",
                              facts.name(), facts.size, zero.name(), zero.size));
  }
  if (facts.rank < 0 || facts.rank >= size())
    return refuse(fmt::format("{} is not a rank of {}", facts.name(), size()));
  if (const auto& other = ranks_[static_cast<size_t>(facts.rank)]) {
    return refuse(
        fmt::format("rank {} is there twice: {}, process {}, and {}, process {}; give every process a rank of its own",
                    facts.rank, other->host, other->process, facts.host, facts.process));
  }
  if (!facts.problem.empty()) return Refusal{facts.problem_code, facts.name() + ": " + facts.problem};
  const auto user = rank_on_gpu_.find({host_of(facts), facts.device_uuid});
  if (!facts.device_uuid.empty() && user != rank_on_gpu_.end()) {
    return one_gpu_for_two(*ranks_[static_cast<size_t>(user->second)], facts);
  }
  if (facts.program != zero.program) {
    return refuse(fmt::format("{} runs another build of titan_train than {}; start the same file everywhere",
                              facts.name(), zero.name()));
  }
  if (facts.config != zero.config) {
    return refuse(
        fmt::format("{} was given another configuration than {}: {}; give every rank the same file and options",
                    facts.name(), zero.name(), config_difference(facts.config, zero.config)));
  }
  return std::nullopt;
}

std::optional<Refusal> RankCheck::add(RankFacts facts) {
  if (std::optional<Refusal> refusal = disagreement(facts)) return refusal;
  facts.config.clear();  // compared already; thousands of ranks' configs would fill the memory
  count(facts, 1);
  auto& place = ranks_[static_cast<size_t>(facts.rank)];
  place = std::move(facts);
  ++present_;
  return std::nullopt;
}

void RankCheck::remove(int64_t rank) {
  if (rank < 1 || rank >= size()) return;
  std::optional<RankFacts>& place = ranks_[static_cast<size_t>(rank)];
  if (!place) return;
  count(*place, -1);
  --present_;
  place.reset();
}

std::optional<Refusal> RankCheck::settle() {
  for (const std::optional<RankFacts>& facts : ranks_) ranks_of_host_[host_of(*facts)].push_back(facts->rank);
  local_ranks_.resize(ranks_.size());
  for (const auto& [host, members] : ranks_of_host_) {
    std::map<std::string, int64_t> users;
    for (size_t i = 0; i < members.size(); ++i) {
      RankFacts& facts = *ranks_[static_cast<size_t>(members[i])];
      local_ranks_[static_cast<size_t>(facts.rank)] =
          facts.local_rank >= 0 ? facts.local_rank : static_cast<int64_t>(i);
      if (facts.local_size > std::ssize(members)) {
        return Refusal{kLauncherCode,
                       fmt::format("{} has LOCAL_WORLD_SIZE={}, but of its host {} only {} joined; "
                                   "set it to the number of ranks on each host, or leave it and LOCAL_RANK unset "
                                   "(containers of one host need one host name)",
                                   facts.name(), facts.local_size, facts.host, ranks_in_words(members))};
      }
      if (std::optional<Refusal> refusal = choose_gpu(facts.rank)) return refusal;
      if (facts.device_uuid.empty()) continue;
      const auto [first, is_first] = users.emplace(facts.device_uuid, facts.rank);
      if (!is_first) return one_gpu_for_two(*ranks_[static_cast<size_t>(first->second)], facts);
    }
  }
  return std::nullopt;
}

HostPlace RankCheck::place(int64_t rank) const {
  return {local_ranks_[static_cast<size_t>(rank)], ranks_of_host_.at(host_of(*facts(rank)))};
}

std::optional<Refusal> RankCheck::choose_gpu(int64_t rank) {
  RankFacts& facts = *ranks_[static_cast<size_t>(rank)];
  if (facts.gpus.empty()) return std::nullopt;
  const int64_t index = local_ranks_[static_cast<size_t>(rank)];
  if (index >= std::ssize(facts.gpus)) {
    return Refusal{kLauncherCode,
                   fmt::format("{} is number {} on its host, counted from 0, and sees {} GPUs; start at most one rank "
                               "per GPU on a host, or say training.device = \"cpu\"",
                               facts.name(), index, facts.gpus.size())};
  }
  facts.device = fmt::format("cuda:{}", index);
  facts.device_uuid = facts.gpus[static_cast<size_t>(index)];
  return std::nullopt;
}

std::string RankCheck::missing() const {
  std::vector<int64_t> absent;
  for (int64_t rank = 0; rank < size(); ++rank) {
    if (!facts(rank)) absent.push_back(rank);
  }
  return ranks_in_words(absent);
}

int64_t RankCheck::core_share(int64_t rank) const {
  const RankFacts& own = *facts(rank);
  int64_t share = std::ssize(own.cores) / on_cores_.at({host_of(own), own.cores});
  if (own.quota > 0) share = std::min(share, own.quota / in_quota_group_.at({host_of(own), own.quota_group}));
  return std::max<int64_t>(1, share);
}

std::vector<std::string> RankCheck::table(int64_t most) const {
  const int64_t shown = std::min(size(), most);
  size_t host_width = 4;
  for (int64_t rank = 0; rank < shown; ++rank) host_width = std::max(host_width, facts(rank)->host.size());
  std::vector<std::string> lines{fmt::format("  rank  {:<{}}  process  device   cores", "host", host_width)};
  for (int64_t rank = 0; rank < shown; ++rank) {
    const RankFacts& own = *facts(rank);
    const int64_t share = core_share(rank);
    std::string cores = core_list(own.cores);
    if (share != std::ssize(own.cores)) cores += fmt::format(" (shared: {} for this rank)", share);
    lines.push_back(
        fmt::format("  {:>4}  {:<{}}  {:>7}  {:<7}  {}", rank, own.host, host_width, own.process, own.device, cores));
  }
  if (shown < size()) lines.push_back(fmt::format("  … and {} more", size() - shown));
  return lines;
}

std::vector<int64_t> RankCheck::crowded_ranks() const {
  std::vector<int64_t> crowded;
  for (int64_t rank = 0; rank < size(); ++rank) {
    if (facts(rank)->threads > core_share(rank)) crowded.push_back(rank);
  }
  return crowded;
}

/// Ranks that are alone on their only core although the host has more cores than ranks. Ranks that share their only
/// core are not reported: the host offers no other, and no launcher bound them.
std::vector<int64_t> RankCheck::bound_ranks() const {
  std::vector<int64_t> bound;
  for (int64_t rank = 0; rank < size(); ++rank) {
    const RankFacts& own = *facts(rank);
    if (own.cores.size() != 1 || own.threads > 1) continue;
    const bool is_alone = on_cores_.at({host_of(own), own.cores}) == 1;
    if (is_alone && own.host_cores > on_host_.at(host_of(own))) bound.push_back(rank);
  }
  return bound;
}

std::vector<std::string> RankCheck::warnings() const {
  std::vector<std::string> lines;
  if (const std::vector<int64_t> crowded = crowded_ranks(); !crowded.empty()) {
    lines.push_back(
        fmt::format("{}: training.threads = {} and {} cores; threads that wait for each other make every step slower "
                    "(mpirun --bind-to none, srun --cpus-per-task)",
                    ranks_in_words(crowded), facts(crowded[0])->threads, core_share(crowded[0])));
  }
  if (const std::vector<int64_t> bound = bound_ranks(); !bound.empty()) {
    lines.push_back(fmt::format(
        "{}: bound to one core each, of {} that {} has; computing, reading data and communication take turns on it "
        "(mpirun --bind-to none, srun --cpus-per-task)",
        ranks_in_words(bound), facts(bound[0])->host_cores, facts(bound[0])->host));
  }
  return lines;
}

}  // namespace titan
