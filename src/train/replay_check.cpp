#include "replay_check.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>

#include "disagreement.h"
#include "finding_exchange.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/distributed/rank_check.h"
#include "titan/parallel/state_hash.h"
#include "titan/train/run.h"
#include "titan/train/state_check.h"

namespace titan {
namespace {

/// Collects the gradients of each weight group when they are complete on this rank, before they are sent.
class GradientHashes {
 public:
  explicit GradientHashes(const std::vector<std::vector<Parameter*>>& group_parameters)
      : group_parameters_(group_parameters) {}

  /// Is called before each instruction, and once after the last one.
  void observe(ActionKind kind, int group) {
    if (closed_ >= 0) hash_group(group_parameters_[static_cast<size_t>(closed_)]);
    closed_ = kind == ActionKind::close_gradient ? group : -1;
  }
  ReplayHashes take() { return std::move(hashes_); }

 private:
  void hash_group(const std::vector<Parameter*>& parameters) {
    std::vector<at::Tensor> gradients;
    std::vector<const Parameter*> trained;
    for (Parameter* parameter : parameters) {
      if (!parameter->trainable()) continue;
      trained.push_back(parameter);
      // With one shard and no replica the gradient is reduced already, and its slot may be free.
      const at::Tensor& shard = parameter->gradient_shard;
      gradients.push_back((shard.defined() ? shard : parameter->gradient()).contiguous());
    }
    const std::vector<TensorState> states = states_of(gradients);
    for (size_t i = 0; i < trained.size(); ++i) {
      hashes_.emplace_back("the gradient of " + trained[i]->name(), states[i].hash);
    }
  }

  const std::vector<std::vector<Parameter*>>& group_parameters_;
  int closed_ = -1;
  ReplayHashes hashes_;
};

}  // namespace

std::vector<std::string> unequal_results(const ReplayHashes& first, const ReplayHashes& second) {
  TITAN_CHECK(first.size() == second.size(), first.size(), second.size());
  std::vector<std::string> unequal;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i] != second[i]) unequal.push_back(first[i].first);
  }
  return unequal;
}

int64_t combined(const ReplayHashes& hashes) {
  std::vector<int64_t> numbers;
  for (const auto& [name, hash] : hashes) numbers.push_back(hash);
  return hash_of_bytes(numbers.data(), static_cast<int64_t>(numbers.size() * sizeof(int64_t)));
}

std::vector<std::vector<int64_t>> ranks_alike(const ModelDescription& model, const DeviceMesh& mesh) {
  const std::vector<MeshAxis> apart =
      axes_that_divide({DividedWork::units, DividedWork::positions, DividedWork::features});
  std::set<MeshAxis> axes(apart.begin(), apart.end());
  for (const UnitDescription& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const AxisSplit& split : parameter.splits) axes.insert(split.axis);
    }
  }
  std::map<std::vector<int64_t>, std::vector<int64_t>> by_place;
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    std::vector<int64_t> place;
    for (const MeshAxis axis : axes) place.push_back(mesh.coordinate(rank, axis));
    by_place[place].push_back(rank);
  }
  std::vector<std::vector<int64_t>> sets;
  for (const auto& [place, ranks] : by_place) sets.push_back(ranks);
  return sets;
}

ReplayCheck::ReplayCheck(const Run& run) : run_(run) {
  const DebugSection& debug = run.config.debug;
  if (debug.replay_steps == 0 || !debug.replay_on_neighbours || run.place.mesh.world() == 1) return;
  alike_ = ranks_alike(run.model.description, run.place.mesh);
  if (std::any_of(alike_.begin(), alike_.end(), [](const auto& ranks) { return ranks.size() > 1; })) return;
  throw Error(
      ExitCode::bad_config,
      "debug.replay_on_neighbours = true, but no two ranks hold the same parts of all weights in this layout; set "
      "it to false: debug.replay_steps alone compares each rank with itself");
}

bool ReplayCheck::is_due(int64_t step) const {
  const int64_t period = run_.config.debug.replay_steps;
  return period > 0 && step % period == 0 && !run_.world.fake;
}

void ReplayCheck::check(int64_t step, const BatchContext& microbatch) {
  check_own(step, microbatch);
  if (!alike_.empty()) check_neighbours(step, microbatch);
  last_agreeing_ = step - 1;
  has_agreed_ = true;
}

ReplayHashes ReplayCheck::replay(const BatchContext& microbatch) const {
  GradientHashes gradients(run_.model.assembly.group_parameters);
  const at::Tensor loss = run_.model.step_runner->replay(
      microbatch, [&](const Action& action) { gradients.observe(action.kind, action.group); });
  ReplayHashes hashes;
  if (loss.defined()) hashes.emplace_back("the loss", hash_of_bytes(loss.cpu().const_data_ptr(), sizeof(double)));
  ReplayHashes rest = gradients.take();
  hashes.insert(hashes.end(), rest.begin(), rest.end());
  return hashes;
}

void ReplayCheck::check_own(int64_t step, const BatchContext& microbatch) const {
  const ReplayHashes first = replay(microbatch);
  const std::vector<std::string> unequal = unequal_results(first, replay(microbatch));
  if (!run_.state_check->is_on_any_rank(!unequal.empty())) return;
  const std::string found =
      run_.findings->names_by_rank(unequal, [&](const NamedRanks& named) { record(step, named); });
  fail(step, "one microbatch computed twice has other bits in " + found);
}

BatchContext ReplayCheck::shared_microbatch(const BatchContext& own) const {
  Communicator& data = *run_.communicators.data;
  BatchContext shared = own;
  // Data-parallel ranks with the same part of each sequence differ by the size of the axis cp: the first has the number
  // of that part.
  const int64_t source = run_.place.coordinate(MeshAxis::cp) * own.tokens.size(0);
  for (at::Tensor BatchContext::*part : {&BatchContext::tokens, &BatchContext::labels}) {
    std::vector<int64_t> shape = (own.*part).sizes().vec();
    shape[0] *= data.size();
    const at::Tensor all = at::empty(shape, (own.*part).options());
    data.all_gather({all}, {(own.*part).contiguous()})->wait();
    shared.*part = all.narrow(0, source, own.tokens.size(0)).contiguous();
  }
  return shared;
}

void ReplayCheck::check_neighbours(int64_t step, const BatchContext& microbatch) const {
  const ReplayHashes hashes = replay(shared_microbatch(microbatch));
  at::Tensor own = at::empty({1}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = combined(hashes);
  own = own.to(run_.device.device);
  at::Tensor all = at::empty({run_.world.size}, own.options());
  run_.communicators.world->all_gather({all}, {own})->wait();
  all = all.cpu();
  std::vector<std::string> found;
  bool is_named = false;
  for (const std::vector<int64_t>& ranks : alike_) {
    Replicas by_bits;
    for (const int64_t rank : ranks) by_bits[all.const_data_ptr<int64_t>()[rank]].push_back(rank);
    if (by_bits.size() == 1) continue;
    std::vector<std::string> sides;
    for (const auto& [bits, side] : by_bits) sides.push_back(number_list(side));
    found.push_back("ranks " + join(sides, " against "));
    const std::vector<int64_t> wrong = sides_of(by_bits).wrong;
    is_named = is_named || std::binary_search(wrong.begin(), wrong.end(), run_.world.rank);
  }
  if (found.empty()) return;
  const std::vector<std::string> names(is_named ? 1 : 0, "a microbatch that neighbours computed, too");
  run_.findings->names_by_rank(names, [&](const NamedRanks& named) { record(step, named); });
  fail(step, "one microbatch has other bits on other ranks: " + join(found, ", "));
}

void ReplayCheck::record(int64_t step, const NamedRanks& named) const {
  record_finding(run_, step, last_agreeing_, named);
}

void ReplayCheck::fail(int64_t step, const std::string& what) const {
  throw Error(ExitCode::silent_corruption,
              fmt::format("step {}: {}; a processor computes wrong numbers, or ranks differ in processor, number of "
                          "threads or libraries. {} {}: checkpoints up to it are taken for right, the state now is "
                          "not saved. Start again from there without the hosts of these ranks, or with "
                          "debug.replay_steps = 0 if the processors are meant to differ",
                          step, what,
                          has_agreed_ ? "Replays last agreed after step"
                                      : "This process made no replay before, and began with step",
                          last_agreeing_));
}

}  // namespace titan
