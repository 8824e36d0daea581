#include "titan/checkpoint/training_state.h"

#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <variant>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"
#include "support/tensors.h"

namespace titan {
namespace {

/// Two parameters, the second one not trained, cut in halves of rows over two ranks.
std::vector<SavedParameter> parameters(int64_t rank, uint64_t seed) {
  const auto halves = [](int64_t rank) { return std::optional(Box{{2 * rank, 0}, {2, 3}}); };
  const auto rows = [&](uint64_t which) { return normal({4, 3}, seed + which).narrow(0, 2 * rank, 2).clone(); };
  return {{"a.weight",
           {4, 3},
           halves,
           rows(1),
           {{"exp_avg", rows(2)}, {"exp_avg_sq", rows(3)}},
           /*trained=*/true,
           at::scalar_tensor(7, at::kFloat)},
          {"b.weight", {4, 3}, halves, rows(4), {}, /*trained=*/false}};
}

SavedProgress some_progress() { return {7, 12345, {{"chunk", 99}}, 2}; }

class TrainingState : public ::testing::Test {
 protected:
  /// As two ranks, one after the other.
  void save(const std::function<CheckpointState(int64_t rank)>& state_of) {
    const CheckpointState first = state_of(0);
    const SavePlan plan = plan_save(first.tensors, 2);
    const SavePlace place{"root", 7, "run"};
    begin_save(storage_, place, 0);
    std::map<std::string, FileRecord> files;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const CheckpointState state = state_of(rank);
      const std::vector<PlannedWrite>& writes = plan[static_cast<size_t>(rank)];
      files[data_file(rank)] =
          *write_data(storage_, place, rank, rank == 0 ? first.values : std::vector<SavedValue>(), writes.size(),
                      [&](size_t i) { return written_part(state.tensors[writes[i].tensor], writes[i]); });
    }
    commit_save(storage_, place, index_of(plan, first.tensors, first.values), std::move(files), {});
  }

  /// As if another program had written what was saved: no manifest, and none is missing.
  void write_index_of_python() {
    const std::filesystem::path folder = "root/step-7";
    CheckpointIndex index = read_index(storage_.read_all(folder / kIndexFile));
    index.has_manifest = false;
    for (const char* file : {kIndexFile, kManifestFile}) storage_.remove(folder / file);
    storage_.write_all(folder / kIndexFile, write_index(index));
  }

  struct Restored {
    std::optional<SavedProgress> progress;
    std::vector<std::string> notes;
  };
  Restored restore(const std::vector<SavedParameter>& into, int64_t rank, const std::set<std::string>& leave = {}) {
    OpenCheckpoint checkpoint(storage_, "root/step-7", true);
    Restored restored;
    restored.progress = restore_run(checkpoint, into, rank, restored.notes, leave);
    return restored;
  }

  MemoryStorage storage_;
};

TEST_F(TrainingState, EveryRankGetsItsShardsTheStepAndTheDataPositionBack) {
  save([&](int64_t rank) { return run_state(parameters(rank, 1), some_progress()); });
  for (int64_t rank = 0; rank < 2; ++rank) {
    const std::vector<SavedParameter> expected = parameters(rank, 1), into = parameters(rank, 50);
    const Restored restored = restore(into, rank);
    EXPECT_TRUE(same_bits(into[0].master, expected[0].master));
    EXPECT_TRUE(same_bits(into[0].moments[0].second, expected[0].moments[0].second));
    EXPECT_TRUE(same_bits(into[0].moments[1].second, expected[0].moments[1].second));
    EXPECT_TRUE(same_bits(into[1].master, expected[1].master));
    ASSERT_TRUE(restored.progress);
    EXPECT_EQ(restored.progress->step, 7);
    EXPECT_FALSE(restored.progress->data_position.is_null());
    EXPECT_EQ(restored.progress->data_position, some_progress().data_position);
    EXPECT_EQ(restored.progress->tokens, 12345) << "not a multiple of its two ranks";
    EXPECT_TRUE(restored.notes.empty());
  }
}

TEST_F(TrainingState, ADamagedFileIsFoundThoughNothingOfItIsNeeded) {
  const auto whole = [](uint64_t seed) {
    std::vector<SavedParameter> all;
    for (const char* name : {"a.weight", "b.weight", "c.weight", "d.weight"}) {
      const auto tensor = [&] { return normal({4, 3}, ++seed); };
      all.push_back(
          {name, {4, 3}, whole_everywhere({4, 3}), tensor(), {{"exp_avg", tensor()}, {"exp_avg_sq", tensor()}}});
    }
    return all;
  };
  const std::unique_ptr<RankBarrier> barrier = make_lone_barrier();
  CheckpointerOptions options = test_options(
      SaveMode::synchronous, [](const SaveOutcome& outcome) { EXPECT_TRUE(outcome.committed) << outcome.problem; });
  options.most_files = 100;  // a file a tensor
  Checkpointer(storage_, *barrier, options).save(7, run_state(whole(1), some_progress()));
  int64_t files = 0;
  for (const auto& [path, bytes] : storage_.files()) {
    if (!path.ends_with(".distcp")) continue;
    ++files;
    const std::unique_ptr<MemoryStorage> damaged = storage_.copy();
    damaged->damage(path, [](std::string& content) { content[content.size() / 2] ^= 1; });
    for (const int64_t ranks : {1, 3}) {
      int64_t found = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        OpenCheckpoint checkpoint(*damaged, "root/step-7", true);
        std::vector<std::string> notes;
        try {
          restore_run(checkpoint, whole(50), rank, notes, {}, 0, ranks);
        } catch (const DamageError&) {
          ++found;
        }
      }
      EXPECT_GE(found, 1) << path << " by " << ranks;
    }
  }
  EXPECT_GT(files, 12);
}

TEST_F(TrainingState, NamesAreTorchtitans) {
  const CheckpointState state = run_state(parameters(0, 1), some_progress());
  std::set<std::string> names;
  for (const StateTensor& tensor : state.tensors) names.insert(tensor.tensor.name);
  EXPECT_EQ(names, (std::set<std::string>{"a.weight", "b.weight", "optimizer.state.a.weight.exp_avg",
                                          "optimizer.state.a.weight.exp_avg_sq", "optimizer.state.a.weight.step"}));
  names.clear();
  for (const SavedValue& value : state.values) names.insert(value.name);
  std::set<std::string> expected{"dataloader.dp_rank_0",          "dataloader.dp_rank_1", "dataloader.world_size",
                                 "dataloader.titan_stream",       "train_state.step",     "train_state.ntokens_seen",
                                 "train_state.titan_ntokens_seen"};
  for (const char* key : {"lr", "initial_lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "capturable",
                          "differentiable", "decoupled_weight_decay", "fused", "foreach"}) {
    expected.insert(std::string("optimizer.param_groups.a.weight.") + key);
  }
  for (const char* key : {"base_lrs", "last_epoch", "_step_count", "_is_initial", "_get_lr_called_within_step",
                          "_last_lr", "lr_lambdas"}) {
    expected.insert(std::string("lr_scheduler.") + key);
  }
  EXPECT_EQ(names, expected);
}

TEST_F(TrainingState, TheSettingsOfAParameterAreTheOptimizersTimesTheMultipliersOfItsGroup) {
  save([&](int64_t rank) {
    std::vector<SavedParameter> all = parameters(rank, 1);
    all[0].lr_multiplier = 0.5;
    all[0].weight_decay_multiplier = 0.25;
    return run_state(all, some_progress());
  });
  OpenCheckpoint checkpoint(storage_, "root/step-7", true);
  const auto saved = [&](const std::string& key) { return checkpoint.value(key); };
  const std::string group = "optimizer.param_groups.a.weight.";
  EXPECT_EQ(saved(group + "lr")->real, 1e-4 * 0.5);
  EXPECT_EQ(saved(group + "initial_lr")->real, 3e-4 * 0.5);
  EXPECT_EQ(saved(group + "weight_decay")->real, 0.1 * 0.25);
  EXPECT_EQ(saved(group + "betas")->items.at(1)->real, 0.95);
  EXPECT_EQ(saved(group + "eps")->real, 1e-8);
  EXPECT_TRUE(saved(group + "fused")->is(PickleValue::Kind::boolean));
  EXPECT_TRUE(saved(group + "foreach")->is(PickleValue::Kind::none));
  EXPECT_EQ(saved("lr_scheduler.base_lrs")->items.at(0)->real, 3e-4 * 0.5);
  EXPECT_EQ(saved("lr_scheduler._last_lr")->items.at(0)->real, 1e-4 * 0.5);
}

TEST_F(TrainingState, StatesThatAreLeftOutKeepWhatTheyHad) {
  save([&](int64_t rank) { return run_state(parameters(rank, 1), some_progress()); });
  const std::vector<SavedParameter> before = parameters(0, 50), into = parameters(0, 50);
  const Restored restored = restore(into, 0, {"optimizer", "dataloader"});
  EXPECT_TRUE(same_bits(into[0].master, parameters(0, 1)[0].master));
  EXPECT_TRUE(same_bits(into[0].moments[0].second, before[0].moments[0].second));
  EXPECT_TRUE(restored.progress->data_position.is_null());
  EXPECT_EQ(restored.progress->step, 7);
}

/// parameters(), both trained, whose moments have seen that many steps.
std::vector<SavedParameter> both_trained(int64_t rank, uint64_t seed, float first, float second) {
  std::vector<SavedParameter> all = parameters(rank, seed);
  for (const auto& [name, moment] : all[0].moments) all[1].moments.emplace_back(name, all[0].moments[0].second.clone());
  all[1].trained = true;
  all[0].steps = at::scalar_tensor(first, at::kFloat);
  all[1].steps = at::scalar_tensor(second, at::kFloat);
  return all;
}

TEST_F(TrainingState, TheStepsThatTheMomentsHaveSeenAreRestoredWithThemWhateverElseIsLeftOut) {
  save([&](int64_t rank) { return run_state(both_trained(rank, 1, 3, 5), some_progress()); });
  for (const bool of_python : {false, true}) {
    if (of_python) write_index_of_python();
    for (const std::set<std::string>& leave : {std::set<std::string>{},
                                               {"train_state"},
                                               {"train_state", "dataloader"},
                                               {"model", "train_state", "dataloader", "lr_scheduler"}}) {
      const std::vector<SavedParameter> into = both_trained(1, 50, 0, 0);
      const Restored restored = restore(into, 1, leave);
      EXPECT_EQ(restored.progress.has_value(), !leave.contains("train_state"));
      EXPECT_EQ(into[0].steps.item<float>(), 3);
      EXPECT_EQ(into[1].steps.item<float>(), 5);
      EXPECT_TRUE(restored.notes.empty());
    }
    const std::vector<SavedParameter> into = both_trained(1, 50, 0, 0);
    restore(into, 1, {"optimizer"});
    EXPECT_EQ(into[1].steps.item<float>(), 0) << "moments that begin anew have seen no step";
  }
}

TEST_F(TrainingState, ACountOfStepsThatIsNoneIsDamage) {
  for (const float count : {-1.0F, 2.5F, NAN}) {
    storage_.remove_folder("root");
    save([&](int64_t rank) { return run_state(both_trained(rank, 1, 3, count), some_progress()); });
    EXPECT_THROW(restore(both_trained(0, 50, 0, 0), 0), DamageError) << count;
  }
}

TEST_F(TrainingState, MomentsOfAParameterThatWasFrozenBeginFromZero) {
  save([&](int64_t rank) { return run_state(parameters(rank, 1), some_progress()); });
  std::vector<SavedParameter> into = both_trained(0, 50, 0, 0);
  into[1].moments[0].second.zero_();
  const Restored restored = restore(into, 0);
  EXPECT_EQ(into[0].steps.item<float>(), 7);
  EXPECT_EQ(into[1].steps.item<float>(), 0);
  EXPECT_EQ(into[1].moments[0].second.abs().sum().item<float>(), 0);
  ASSERT_EQ(restored.notes.size(), 1u);
  EXPECT_NE(restored.notes[0].find("no moments of b.weight"), std::string::npos) << restored.notes[0];
  write_index_of_python();
  EXPECT_THROW(restore(into, 0), MismatchError) << "without a manifest they may be lost";
}

/// What a checkpoint has instead of the entry of that name.
struct Entry {
  std::string name;
  std::variant<std::monostate, at::Tensor, PickleRef> content;  // monostate: no such entry
};

CheckpointState with_entries(CheckpointState state, const std::vector<Entry>& entries) {
  for (const auto& [name, content] : entries) {
    std::erase_if(state.tensors, [&](const StateTensor& one) { return one.tensor.name == name; });
    std::erase_if(state.values, [&](const SavedValue& one) { return one.name == name; });
    if (const auto* value = std::get_if<PickleRef>(&content)) state.values.push_back({name, value_blob(*value)});
    if (const auto* number = std::get_if<at::Tensor>(&content)) {
      state.tensors.push_back({{name, number->scalar_type(), {}}, whole_everywhere({}), *number});
    }
  }
  return state;
}

TEST_F(TrainingState, EveryGenerationsCountOfTokensIsReadAsThatOfAllRanks) {
  struct Case {
    const char* writer;
    std::vector<Entry> entries;
    int64_t tokens;
    const char* note;
  };
  const Entry no_own_count{"train_state.titan_ntokens_seen", {}}, no_ranks{"dataloader.world_size", {}};
  const PickleRef position = pickle::bytes(write_pickle(pickle::dictionary({{"titan_stream", pickle::text("[3]")}})));
  const auto count = [](int64_t number) { return Entry{"train_state.ntokens_seen", pickle::integer(number)}; };
  const Entry step_in_tensor{"train_state.step", at::scalar_tensor(7, at::kInt)};
  for (const Case& one : std::vector<Case>{
           {"titan", {}, 12345, ""},
           {"torchtitan on 2 ranks", {no_own_count, count(600)}, 1200, ""},
           {"torchtitan on 3 ranks",
            {no_own_count, count(600), {"dataloader.world_size", pickle::integer(3)}},
            1800,
            ""},
           {"ranks that only the loader states tell", {no_own_count, no_ranks, count(600)}, 1200, ""},
           {"torchtitan until July 2025", {no_own_count, {"train_state.ntokens_seen", {}}}, 0, "how many tokens"},
           {"titan until November 2026",
            {no_own_count,
             step_in_tensor,
             {"train_state.ntokens_seen", at::scalar_tensor(4321, at::kLong)},
             {"dataloader.titan_stream", {}},
             {"dataloader.dp_rank_0", position}},
            4321,
            ""},
           {"torchtitan until March 2025",
            {no_own_count, step_in_tensor, {"train_state.ntokens_seen", {}}, no_ranks},
            0,
            "how many tokens"},
       }) {
    storage_.remove_folder("root");
    save([&](int64_t rank) { return with_entries(run_state(parameters(rank, 1), some_progress()), one.entries); });
    const Restored restored = restore(parameters(1, 50), 1);
    ASSERT_TRUE(restored.progress) << one.writer;
    EXPECT_EQ(restored.progress->step, 7) << one.writer;
    EXPECT_EQ(restored.progress->tokens.value_or(0), one.tokens) << one.writer;
    EXPECT_FALSE(restored.progress->data_position.is_null()) << one.writer;
    const std::string notes = fmt::format("{}", fmt::join(restored.notes, "; "));
    EXPECT_EQ(notes.empty(), std::string_view(one.note).empty()) << one.writer << ": " << notes;
    EXPECT_NE(notes.find(one.note), std::string::npos) << one.writer << ": " << notes;
  }
}

TEST_F(TrainingState, CountsThatCannotBeAreRefusedByName) {
  const auto refusal = [&](const std::string& name, const auto& content) -> std::string {
    storage_.remove_folder("root");
    const std::vector<Entry> entries{{name, content}, {"train_state.titan_ntokens_seen", {}}};
    save([&](int64_t rank) { return with_entries(run_state(parameters(rank, 1), some_progress()), entries); });
    try {
      return fmt::format("restored step {}", restore(parameters(0, 50), 0).progress->step);
    } catch (const Error& error) {
      return error.what();
    }
  };
  for (const auto& [value, says] : std::vector<std::pair<PickleRef, std::string>>{
           {pickle::integer(-4), "its train_state.step is -4"},
           {pickle::integer(int64_t{1} << 40), fmt::format("restored step {}", int64_t{1} << 40)},
           {pickle::integer(int64_t{1} << 60), "its train_state.step is 1.152921504606847e+18"},
           {pickle::real(4), "its train_state.step is not a whole number"},
           {pickle::none(), "its train_state.step is not a whole number"}}) {
    EXPECT_EQ(refusal("train_state.step", value), says);
  }
  EXPECT_EQ(refusal("train_state.step", at::scalar_tensor(-4, at::kInt)), "its train_state.step is -4");
  EXPECT_EQ(refusal("train_state.step", at::scalar_tensor(4.0, at::kFloat)),
            "its train_state.step is float32 and not a whole number");
  EXPECT_EQ(refusal("train_state.ntokens_seen", at::scalar_tensor(-1, at::kLong)),
            "its train_state.ntokens_seen is -1");
  EXPECT_EQ(refusal("train_state.ntokens_seen", pickle::integer(900'000'000'000'000)),
            "its train_state.ntokens_seen is 900000000000000, on each of 2 ranks");
  EXPECT_EQ(refusal("dataloader.world_size", pickle::integer(0)), "its dataloader.world_size is 0");
  EXPECT_EQ(refusal("optimizer.state.a.weight.step", at::scalar_tensor(NAN, at::kFloat)),
            "its optimizer.state.a.weight.step is nan");
}

TEST_F(TrainingState, ACheckpointOfTheModelAloneRestoresThatAndSaysSo) {
  save([&](int64_t rank) { return describe_model(parameters(rank, 1)); });
  const std::vector<SavedParameter> into = parameters(1, 50);
  const Restored restored = restore(into, 1);
  EXPECT_TRUE(same_bits(into[0].master, parameters(1, 1)[0].master));
  EXPECT_FALSE(restored.progress);
  ASSERT_EQ(restored.notes.size(), 1u);
  EXPECT_NE(restored.notes[0].find("only the model"), std::string::npos);
}

TEST_F(TrainingState, WeightsThatTheModelHasNotAreNamedAndNothingIsRead) {
  save([&](int64_t rank) { return run_state(parameters(rank, 1), some_progress()); });
  std::vector<SavedParameter> into = parameters(0, 50);
  into.pop_back();
  try {
    restore(into, 0);
    FAIL() << "nothing was thrown";
  } catch (const MismatchError& error) {
    EXPECT_NE(std::string(error.what()).find("it holds b.weight"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(same_bits(into[0].master, parameters(0, 50)[0].master));
}

TEST_F(TrainingState, ADataPositionOfAnotherProgramIsNamedAndTheRestIsRestored) {
  std::string in_many_places = "\x80\x02]";  // x = []; then x = (x, x), sixty times
  for (char place = 0; place < 60; ++place) in_many_places += std::string{'q', place, 'h', place, '\x86'};
  for (const auto& [pickled, why] : std::vector<std::pair<std::string, std::string>>{
           {write_pickle(pickle::dictionary({{"_sample_idx", pickle::integer(5)}})), "another program's samples"},
           {std::string("\x80\x02"
                        "cos\nsystem\n."),
            "os.system"},
           {"\x80\x02}q\x01K\x01h\x01s.", "holds itself"},
           {in_many_places + ".", "in too many places"}}) {
    storage_.remove_folder("root");
    save([&](int64_t rank) {
      CheckpointState state = run_state(parameters(rank, 1), some_progress());
      for (SavedValue& value : state.values) {
        if (value.name == "dataloader.dp_rank_0") value.blob = value_blob(pickle::bytes(pickled));
      }
      return with_entries(std::move(state), {{"dataloader.titan_stream", {}}});
    });
    const Restored restored = restore(parameters(0, 50), 0);
    EXPECT_TRUE(restored.progress->data_position.is_null());
    EXPECT_EQ(restored.progress->step, 7);
    ASSERT_EQ(restored.notes.size(), 1u);
    EXPECT_NE(restored.notes[0].find(why), std::string::npos) << restored.notes[0];
  }
}

}  // namespace
}  // namespace titan
