// Six pairs of layouts with a process for each rank, which meet in a store as the ranks of a run do. All pairs, rank by
// rank in one process: reshard_test.cpp.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "checkpoint/states.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/store_barrier.h"

namespace titan {
namespace {

struct LayoutPair {
  const char* from;
  const char* to;
};

class Processes : public ::testing::TestWithParam<LayoutPair> {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static TestLayout layout_named(const std::string& name) {
    for (const TestLayout& layout : test_layouts()) {
      if (layout.name == name) return layout;
    }
    throw std::logic_error(name);
  }

  /// Runs `act(barrier)` in a process for each rank; how many of them returned true.
  int64_t run_processes(const std::string& name, int64_t ranks, const std::function<bool(RankBarrier&)>& act) {
    const auto be_rank = [&](int64_t rank) {
      try {
        const auto store = c10::make_intrusive<c10d::FileStore>((folder_ / name).string(), static_cast<int>(ranks));
        return act(*make_store_barrier(store, name, rank, ranks, {.timeout = std::chrono::minutes(5)}));
      } catch (const std::exception& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
        return false;
      }
    };
    std::vector<pid_t> children;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      children.push_back(::fork());
      if (children.back() == 0) ::_exit(be_rank(rank) ? 0 : 1);
    }
    int64_t succeeded = 0;
    for (const pid_t child : children) {
      int status = 1;
      ::waitpid(child, &status, 0);
      succeeded += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return succeeded;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("titan-processes-" + std::to_string(::getpid()));
};

TEST_P(Processes, SaveUnderOneLayoutAndLoadUnderAnotherBitForBit) {
  const TestLayout from = layout_named(GetParam().from), to = layout_named(GetParam().to);
  const std::filesystem::path root = folder_ / "root";
  const int64_t saved = run_processes("save", from.ranks, [&](RankBarrier& barrier) {
    const auto storage = make_posix_storage();
    bool committed = false;
    CheckpointerOptions options =
        test_options(SaveMode::asynchronous, [&](const SaveOutcome& outcome) { committed = outcome.committed; });
    options.root = root;
    Checkpointer checkpointer(*storage, barrier, options);
    checkpointer.save(3, test_state(from, barrier.rank(), 3));
    checkpointer.finish();
    return committed;
  });
  ASSERT_EQ(saved, from.ranks);
  const int64_t loaded = run_processes("load", to.ranks, [&](RankBarrier& barrier) {
    const auto storage = make_posix_storage();
    const std::vector<LoadTarget> targets = test_targets(to, barrier.rank());
    const LoadOutcome outcome = load_together(*storage, barrier, root, std::nullopt,
                                              [&](OpenCheckpoint& checkpoint) { checkpoint.load(targets); });
    return outcome.step == 3 && outcome.verified && holds_version(targets, 3);
  });
  EXPECT_EQ(loaded, to.ranks);
}

INSTANTIATE_TEST_SUITE_P(Pairs, Processes,
                         ::testing::Values(LayoutPair{"single", "fsdp3"}, LayoutPair{"fsdp4", "tp2"},
                                           LayoutPair{"hsdp2x2", "pp2"}, LayoutPair{"pp2xfsdp2", "single"},
                                           LayoutPair{"pp2xddp2xtp2", "fsdp3xtp2"}, LayoutPair{"cp2xfsdp2", "pp3xtp2"}),
                         [](const auto& param) { return std::string(param.param.from) + "_to_" + param.param.to; });

}  // namespace
}  // namespace titan
