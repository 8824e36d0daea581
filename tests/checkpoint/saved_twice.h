// Two committed checkpoints in a storage that fails as it is told to, and what a run and its next start do there.
#pragma once

#include <gtest/gtest.h>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"
#include "titan/checkpoint/catalogue.h"

namespace titan {

inline constexpr Retention kRetention{.keep_latest = 2, .keep_every = 0};

class SavedTwice : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const TestLayout& layout : test_layouts()) {
      if (layout.name == "fsdp2") layout_ = layout;
    }
    save(storage_, 10);
    save(storage_, 20);
    storage_.restart({Surviving::Kind::none, 0});  // all of it is on the medium
    ASSERT_EQ(find_checkpoints(storage_, "root").size(), 2u);
  }

  /// What a run does about one checkpoint: all ranks write, it is committed, old ones go.
  void save(Storage& storage, int64_t step) const {
    save_as_all_ranks(storage, {"root", step, "run" + std::to_string(step)}, layout_, step);
    delete_old(storage, "root", kRetention);
  }

  /// What the next start does; the step whose state all ranks then hold.
  int64_t start(Storage& storage, std::string* line = nullptr) const {
    clean_leftovers(storage, "root");
    std::vector<std::vector<LoadTarget>> targets;
    for (int64_t rank = 0; rank < layout_.ranks; ++rank) targets.push_back(test_targets(layout_, rank));
    const auto barrier = make_lone_barrier();
    const LoadOutcome outcome = load_together(storage, *barrier, "root", std::nullopt, [&](OpenCheckpoint& checkpoint) {
      for (const std::vector<LoadTarget>& mine : targets) checkpoint.load(mine);
    });
    if (line) *line = outcome.line;
    for (const std::vector<LoadTarget>& mine : targets) EXPECT_TRUE(holds_version(mine, outcome.step.value_or(-1)));
    return outcome.step.value_or(-1);
  }

  TestLayout layout_;
  MemoryStorage storage_;
};

}  // namespace titan
