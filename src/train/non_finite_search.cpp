#include "non_finite_search.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "finding_exchange.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/job/job.h"
#include "titan/train/run.h"

namespace titan {
namespace {

/// On a GPU the results of a step are known when the next one has been enqueued.
constexpr size_t kRemembered = 2;

bool has_finite_numbers(const at::Tensor& tensor) {
  return !tensor.defined() || !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}

nlohmann::json json_of(const std::optional<NonFinitePlace>& place) {
  if (!place) return nullptr;
  return {
      {"microbatch", place->microbatch}, {"backward", place->backward}, {"unit", place->unit}, {"name", place->name}};
}

std::optional<NonFinitePlace> place_from_json(const nlohmann::json& json) {
  if (json.is_null()) return std::nullopt;
  return NonFinitePlace{json.at("microbatch").get<int64_t>(), json.at("backward").get<bool>(),
                        json.at("unit").get<int64_t>(), json.at("name").get<std::string>()};
}

}  // namespace

bool is_earlier(const NonFinitePlace& a, const NonFinitePlace& b) {
  const auto order = [](const NonFinitePlace& place) {
    return std::tuple(place.microbatch, place.backward, place.backward ? -place.unit : place.unit);
  };
  return order(a) < order(b);
}

std::optional<FirstNonFinite> first_of(std::span<const std::optional<NonFinitePlace>> ranks) {
  std::optional<FirstNonFinite> first;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) continue;
    if (!first || is_earlier(*ranks[rank], first->place)) first = FirstNonFinite{*ranks[rank], {}};
    if (*ranks[rank] == first->place) first->ranks.push_back(static_cast<int64_t>(rank));
  }
  return first;
}

void NonFiniteSearch::remember(RecentStep step) {
  recent_.push_back(std::move(step));
  if (recent_.size() > kRemembered) recent_.pop_front();
}

std::optional<NonFinitePlace> NonFiniteSearch::search(const RecentStep& recent) {
  Executor& executor = *run_.model.assembly.executor;
  const Plan& plan = run_.model.plan();
  std::optional<NonFinitePlace> found;
  int64_t microbatch = 0;
  executor.inspect_with([&](const Action& action, std::span<const at::Tensor> results) {
    if (std::all_of(results.begin(), results.end(), has_finite_numbers)) return;
    const UnitPlan& unit = plan.units[static_cast<size_t>(action.unit)];
    NonFinitePlace place{microbatch + action.microbatch, action.kind == ActionKind::backward,
                         static_cast<int64_t>(unit.chain_index), unit.name};
    if (!found || is_earlier(place, *found)) found = std::move(place);
  });
  // A recorded microbatch shows nothing of its units: their forwards are computed one by one instead.
  const bool is_recorded = plan.request.cuda_graphs && plan.records_microbatches();
  for (const BatchContext& batch : recent.microbatches) {
    if (is_recorded) {
      infer(run_, batch, UnitMode::evaluate);
    } else {
      run_.model.step_runner->replay(batch);
    }
    microbatch += plan.request.pipeline ? plan.request.pipeline->microbatches : 1;
  }
  executor.inspect_with({});
  return found;
}

std::string NonFiniteSearch::batch_words(const RecentStep& recent) const {
  const StreamState begin = recent.begin.value_or(StreamState());
  const BatchStream& stream = *run_.data.stream;
  return fmt::format("the batch of the step has sequences {} to {}, from {} to {}", begin.chunk, recent.end.chunk - 1,
                     stream.place_of(begin), stream.place_of(recent.end));
}

std::string NonFiniteSearch::sequence_words(const RecentStep& recent, int64_t rank, int64_t microbatch) const {
  const BatchPlan batch = make_batch_plan(run_.config, {run_.place.mesh, rank});
  const PlanRequest& request = run_.model.plan().request;
  const int64_t in_pass = request.pipeline ? request.pipeline->microbatches : 1;
  const int64_t samples = batch.local_batch / in_pass;
  // As in BatchStream: all data-parallel ranks take their samples of a pass in turn.
  const int64_t pass = microbatch / in_pass;
  const int64_t before =
      batch.own_stream ? pass * batch.local_batch : (pass * batch.dp_degree + batch.dp_rank) * batch.local_batch;
  const int64_t first = recent.begin.value_or(StreamState()).chunk + before + microbatch % in_pass * samples;
  return samples == 1 ? fmt::format("sequence {}", first)
                      : fmt::format("sequences {} to {}", first, first + samples - 1);
}

std::string NonFiniteSearch::explain(int64_t step, bool own_loss_is_finite) {
  const auto recent =
      std::find_if(recent_.begin(), recent_.end(), [&](const RecentStep& one) { return one.step == step; });
  if (recent == recent_.end()) return {};
  const std::optional<NonFinitePlace> own = search(*recent);
  const nlohmann::json mine{{"host", host_name()}, {"place", json_of(own)}, {"loss", own_loss_is_finite}};
  return run_.findings->decide(json_text(mine),
                               [&](const std::vector<std::string>& said) { return words_about(*recent, said); });
}

std::string NonFiniteSearch::words_about(const RecentStep& recent, const std::vector<std::string>& said) const {
  std::vector<std::optional<NonFinitePlace>> places(said.size());
  std::vector<std::string> names(said.size()), with_loss;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    read_words(said[rank], rank, [&](const nlohmann::json& words) {
      places[rank] = place_from_json(words.at("place"));
      names[rank] = fmt::format("rank {} ({})", rank, words.at("host").get<std::string>());
      if (!words.at("loss").get<bool>()) with_loss.push_back(names[rank]);
    });
  }
  const std::optional<FirstNonFinite> first = first_of(places);
  if (!first) {
    return fmt::format(
        "the same step computed once more is finite on every rank, so a processor or memory has failed once{}; {}",
        with_loss.empty() ? "" : ": the loss was not finite on " + join(with_loss, " and "), batch_words(recent));
  }
  std::vector<std::string> where;
  for (const int64_t rank : first->ranks) where.push_back(names[static_cast<size_t>(rank)]);
  return fmt::format("it appears first in the {} of {} on {}, with {}; {}",
                     first->place.backward ? "backward" : "forward", first->place.name, join(where, " and "),
                     sequence_words(recent, first->ranks[0], first->place.microbatch), batch_words(recent));
}

}  // namespace titan
