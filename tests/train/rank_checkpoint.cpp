#include "rank_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/optimizer_options.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

/// The whole model with its moments; tensors are this rank's shards.
std::vector<SavedParameter> saved_parameters(const RankState& state) {
  std::vector<SavedParameter> all;
  const std::vector<Parameter*>& mine = state.assembly.parameters;
  for (const ParameterPlace& place : state.places) {
    const Parameter& parameter = state.assembly.model->parameter(place.spec.name);
    SavedParameter one{place.spec.name,
                       place.spec.shape,
                       boxes_of(place.layout, state.mesh, place.stages),
                       parameter.master,
                       {{"exp_avg", {}}, {"exp_avg_sq", {}}}};
    if (const auto at = std::find(mine.begin(), mine.end(), &parameter); at != mine.end()) {
      const auto index = static_cast<size_t>(at - mine.begin());
      const std::vector<at::Tensor> moments = state.optimizer.moments(index);
      for (size_t m = 0; m < one.moments.size(); ++m) one.moments[m].second = moments.at(m);
      one.steps = state.optimizer.applied_steps(index);
    }
    all.push_back(std::move(one));
  }
  return all;
}

void with_checkpoints(const RankState& state, const std::filesystem::path& root,
                      const std::function<void(Checkpointer&)>& act) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const World& world = state.world;
  const std::unique_ptr<RankBarrier> barrier =
      world.size == 1 ? make_lone_barrier()
                      : make_store_barrier(world.store, "checkpoints/" + root.string(), world.rank, world.size,
                                           {.timeout = std::chrono::seconds(60)});
  CheckpointerOptions options;
  options.root = root;
  options.run = "test";
  options.saved = [](const SaveOutcome& outcome) { EXPECT_TRUE(outcome.committed) << outcome.sentence(); };
  Checkpointer checkpointer(*storage, *barrier, std::move(options));
  act(checkpointer);
}

}  // namespace

void save_rank(const RankState& state, const std::filesystem::path& root, int64_t step) {
  with_checkpoints(state, root, [&](Checkpointer& checkpointer) {
    SavedProgress progress;
    progress.step = step;
    const std::vector<SavedParameter> parameters = saved_parameters(state);
    checkpointer.save(step, describe_run(parameters, optimizer_options(), /*lr=*/3e-3, progress), /*now=*/true);
    checkpointer.finish();
  });
}

void load_rank(const RankState& state, const std::filesystem::path& root, int64_t step) {
  with_checkpoints(state, root, [&](Checkpointer& checkpointer) {
    const LoadOutcome loaded = checkpointer.load(step, [&](OpenCheckpoint& checkpoint) {
      std::vector<std::string> notes;
      EXPECT_TRUE(restore_run(checkpoint, saved_parameters(state), state.world.rank, notes));
      EXPECT_LE(notes.size(), 1u) << "all but the data position: these ranks read no corpus";
    });
    EXPECT_EQ(loaded.step, step) << loaded.line;
  });
  state.assembly.executor->weights_changed();
}

}  // namespace titan
