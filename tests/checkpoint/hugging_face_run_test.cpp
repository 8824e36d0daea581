// A run's weights from and into Hugging Face's form under every layout, ranks as threads.
#include "titan/checkpoint/hugging_face_export.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "memory_storage.h"
#include "rank_threads.h"
#include "states.h"
#include "titan/checkpoint/catalogue.h"

namespace titan {
namespace {

constexpr int64_t kVersion = 5;
constexpr const char* kExport = "root/step-9";

/// The weights of the small model of states.h: bfloat16, no optimizer.
std::vector<StateTensor> weights_under(const TestLayout& layout) {
  std::vector<StateTensor> weights;
  for (StateTensor& one : test_tensors(layout)) {
    if (one.tensor.type == at::kBFloat16) weights.push_back(std::move(one));
  }
  return weights;
}

/// Their form of it, with heads of 4 rows that turn.
ForeignModel their_form() {
  ForeignModel model;
  for (const StateTensor& one : weights_under(test_layouts().front())) {
    const std::string& name = one.tensor.name;
    model.tensors.push_back({"model." + name, name, one.tensor.shape, name.ends_with("wq.weight") ? 2 : 0});
  }
  return model;
}

CheckpointState weights_of_rank(const TestLayout& layout, int64_t rank) {
  CheckpointState state = test_state(layout, rank, kVersion);
  std::erase_if(state.tensors, [](const StateTensor& one) { return one.tensor.type != at::kBFloat16; });
  state.values.clear();
  return state;
}

HuggingFaceExport wanted_export() {
  HuggingFaceExport wanted;
  wanted.folder = kExport;
  wanted.run = "run";
  wanted.step = 9;
  wanted.replace = true;
  wanted.model = their_form();
  wanted.type = at::kBFloat16;
  wanted.most_bytes = 400;  // several files, so that several ranks write
  return wanted;
}

/// Saves as all ranks of the layout; every rank's outcome.
std::vector<SaveOutcome> save_under(Storage& storage, const TestLayout& layout) {
  std::vector<SaveOutcome> outcomes(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, [&](RankBarrier& barrier) {
    outcomes[static_cast<size_t>(barrier.rank())] =
        save_hugging_face_together(storage, barrier, wanted_export(), weights_of_rank(layout, barrier.rank()));
  });
  return outcomes;
}

/// Masters of this rank with other content than what is loaded.
std::vector<SavedParameter> parameters_of_rank(const TestLayout& layout, int64_t rank) {
  std::vector<SavedParameter> parameters;
  for (const StateTensor& one : weights_under(layout)) {
    SavedParameter parameter;
    parameter.name = one.tensor.name;
    parameter.shape = one.tensor.shape;
    parameter.box_of = one.box_of;
    if (const std::optional<Box> box = one.box_of(rank)) parameter.master = at::full(box->extent, 77.0, at::kFloat);
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

/// Whether every rank of the layout gets its boxes of the weights.
::testing::AssertionResult loads_under(Storage& storage, const TestLayout& layout) {
  std::vector<std::string> wrong(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, [&](RankBarrier& barrier) {
    std::string& problem = wrong[static_cast<size_t>(barrier.rank())];
    const std::vector<SavedParameter> parameters = parameters_of_rank(layout, barrier.rank());
    try {
      const LoadOutcome outcome =
          load_hugging_face_together(storage, barrier, kExport, std::nullopt, their_form(), parameters);
      if (outcome.line != "LOAD: 7/7 tensors, 0 missing, 0 unexpected from root/step-9 (Hugging Face, verified)") {
        problem = outcome.line;
      }
    } catch (const Error& error) {
      problem = error.what();
      return;
    }
    for (const SavedParameter& parameter : parameters) {
      const std::optional<Box> box = parameter.box_of(barrier.rank());
      if (!box) continue;
      at::Tensor expected = whole_tensor({parameter.name, at::kBFloat16, parameter.shape}, kVersion).to(at::kFloat);
      for (size_t d = 0; d < box->offset.size(); ++d) {
        expected = expected.narrow(static_cast<int64_t>(d), box->offset[d], box->extent[d]);
      }
      if (!expected.equal(parameter.master)) problem += parameter.name + " ";
    }
  });
  for (const std::string& problem : wrong) {
    if (!problem.empty()) return ::testing::AssertionFailure() << layout.name << ": " << problem;
  }
  return ::testing::AssertionSuccess();
}

TEST(HuggingFaceRun, WhatAnyLayoutSavesIsTheSameFilesByteForByte) {
  std::map<std::string, std::string> first;
  for (const TestLayout& layout : test_layouts()) {
    MemoryStorage storage;
    for (const SaveOutcome& outcome : save_under(storage, layout)) {
      ASSERT_TRUE(outcome.committed) << layout.name << ": " << outcome.problem;
    }
    const std::map<std::string, std::string> files = storage.files();
    EXPECT_EQ(storage.list("root").size(), 1u) << layout.name << " left something behind";
    if (first.empty()) first = files;
    EXPECT_GT(files.size(), 3u);
    EXPECT_EQ(files, first) << layout.name;
  }
}

TEST(HuggingFaceRun, EveryLayoutLoadsItsBoxes) {
  MemoryStorage storage;
  ASSERT_TRUE(save_under(storage, test_layouts().front())[0].committed);
  for (const TestLayout& layout : test_layouts()) EXPECT_TRUE(loads_under(storage, layout));
}

TEST(HuggingFaceRun, AFailureOnOneRankIsTheOutcomeOfAllAndLeavesWhatWasThere) {
  const TestLayout layout = test_layouts()[3];
  MemoryStorage storage;
  ASSERT_TRUE(save_under(storage, layout)[0].committed);
  const std::map<std::string, std::string> before = storage.files();
  for (const char* what : {"__1_0.distcp", "model-00002", "titan_manifest"}) {
    storage.set_refusal([&](const std::string& call) { return call.find(what) != std::string::npos ? EIO : 0; });
    const std::vector<SaveOutcome> outcomes = save_under(storage, layout);
    storage.set_refusal(nullptr);
    for (const SaveOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.problem, outcomes[0].problem);
      EXPECT_FALSE(outcome.committed) << what;
    }
    SafetensorsFolder(storage, kExport).check_all();
    EXPECT_EQ(storage.files().size(), before.size()) << what;
  }
}

/// Saves as the only rank.
SaveOutcome save_alone(Storage& storage) {
  return save_hugging_face_together(storage, *make_lone_barrier(), wanted_export(),
                                    weights_of_rank(test_layouts().front(), 0));
}

/// What the next start finds, all of it whole: whether there is an export.
bool is_whole_or_not_there(Storage& storage, const std::string& when) {
  EXPECT_TRUE(clean_leftovers(storage, "root").empty()) << when;
  if (storage.list(kExport).empty()) return false;
  EXPECT_NO_THROW(SafetensorsFolder(storage, kExport).check_all()) << when;
  EXPECT_EQ(storage.list("root").size(), 1u) << when;
  return true;
}

TEST(HuggingFaceRun, AfterEverySingleStorageCallOfASaveThereIsAWholeExportOrNone) {
  MemoryStorage saved;
  ASSERT_TRUE(save_alone(saved).committed);
  for (const bool replaces : {false, true}) {
    int64_t calls = 0, there = 0;
    for (bool done = false; !done; ++calls) {
      for (const Surviving& surviving :
           std::vector<Surviving>{{Surviving::Kind::none, 0}, {Surviving::Kind::all, 0}, {Surviving::Kind::half, 1}}) {
        const std::string when = fmt::format("after call {}, replaces: {}", calls + 1, replaces);
        const std::unique_ptr<MemoryStorage> storage = replaces ? saved.copy() : std::make_unique<MemoryStorage>();
        storage->stop_after(calls + 1);
        try {
          save_alone(*storage);
          done = true;
        } catch (const MachineStopped&) {
        }
        storage->restart(surviving);
        const bool found = is_whole_or_not_there(*storage, when);
        ASSERT_TRUE(found || !(replaces || done)) << when;
        there += found;
        ASSERT_TRUE(save_alone(*storage).committed) << when;
        ASSERT_TRUE(is_whole_or_not_there(*storage, when)) << when;
      }
    }
    EXPECT_GT(calls, 60);
    EXPECT_GT(there, 3);
  }
}

TEST(HuggingFaceRun, WhenAnyCallFailsOnceOrFromThenOnWhatWasThereStays) {
  MemoryStorage saved;
  ASSERT_TRUE(save_alone(saved).committed);
  bool done = false;
  int64_t call = 0;
  while (!done) {
    ++call;
    for (const int64_t times : {int64_t{1}, int64_t{1} << 40}) {
      const std::unique_ptr<MemoryStorage> storage = saved.copy();
      storage->fail_at(call, EIO, times);
      const bool committed = save_alone(*storage).committed;
      done = committed && storage->calls() < call;
      storage->fail_at(0, 0, 0);
      const std::string when = fmt::format("after call {} failed {} times", call, times);
      ASSERT_TRUE(is_whole_or_not_there(*storage, when)) << when;
      ASSERT_TRUE(save_alone(*storage).committed) << when;
    }
  }
  EXPECT_GT(call, 60);
}

TEST(HuggingFaceRun, AnExportWhoseStepIsSavedAgainAsACheckpointKeepsItsBytesUnderAnotherName) {
  MemoryStorage saved;
  ASSERT_TRUE(save_alone(saved).committed);
  const auto in = [](MemoryStorage& storage, const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& [name, bytes] : storage.files()) {
      if (name.starts_with(folder)) files[name.substr(folder.size())] = bytes;
    }
    return files;
  };
  const std::map<std::string, std::string> before = in(saved, "root/step-9/");
  ASSERT_FALSE(before.empty());
  bool done = false;
  for (int64_t call = 1; !done; ++call) {
    const std::unique_ptr<MemoryStorage> storage = saved.copy();
    storage->stop_after(call);
    try {
      save_as_all_ranks(*storage, {"root", 9, "later"}, test_layouts().front(), 9);
      done = true;
    } catch (const MachineStopped&) {
    }
    storage->restart({Surviving::Kind::none, 0});
    clean_leftovers(*storage, "root");
    ASSERT_TRUE(in(*storage, "root/step-9/") == before || in(*storage, "root/replaced-9/") == before) << call;
    delete_old(*storage, "root", {.keep_latest = 1, .keep_every = 0});
    ASSERT_TRUE(in(*storage, "root/step-9/") == before || in(*storage, "root/replaced-9/") == before) << call;
    if (!done) continue;
    EXPECT_EQ(in(*storage, "root/replaced-9/"), before) << "the checkpoint has taken its step";
  }
}

TEST(HuggingFaceRun, AManifestWithoutItsWeightsIsDamage) {
  MemoryStorage saved;
  ASSERT_TRUE(save_alone(saved).committed);
  for (const auto& [file, bytes] : saved.files()) {
    if (!file.ends_with(kExportManifest)) saved.remove(file);
  }
  EXPECT_THROW(SafetensorsFolder(saved, kExport), DamageError);
}

TEST(HuggingFaceRun, DamageThatOneRankFindsIsSaidByAll) {
  const TestLayout layout = test_layouts()[2];
  MemoryStorage storage;
  ASSERT_TRUE(save_under(storage, layout)[0].committed);
  for (const auto& [file, bytes] : storage.files()) {
    if (!file.ends_with(".safetensors")) continue;
    const std::unique_ptr<MemoryStorage> damaged = storage.copy();
    damaged->damage(file, [](std::string& content) { content.back() ^= 1; });
    std::vector<std::string> said(static_cast<size_t>(layout.ranks));
    run_ranks(layout.ranks, [&](RankBarrier& barrier) {
      try {
        load_hugging_face_together(*damaged, barrier, kExport, std::nullopt, their_form(),
                                   parameters_of_rank(layout, barrier.rank()));
      } catch (const Error& error) {
        said[static_cast<size_t>(barrier.rank())] = error.what();
      }
    });
    EXPECT_NE(said[0].find("cannot be loaded"), std::string::npos) << file;
    EXPECT_EQ(said[0], said[1]);
  }
}

}  // namespace
}  // namespace titan
