// Small jobs that save checkpoints, on one rank or on several, and what they leave.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "support/job.h"
#include "titan/base/filesystem.h"
#include "titan/base/log.h"
#include "titan/train/run.h"

namespace titan::test {

/// Words of a job of eight steps that saves every second one; later words win.
inline std::vector<std::string> words(const std::vector<std::string>& more) {
  std::vector<std::string> all{"--checkpoint.enable",          "--checkpoint.interval=2",
                               "--training.steps=8",           "--checkpoint.last_save_model_only=false",
                               "--lr_scheduler.total_steps=8", "--checkpoint.keep_latest_k=0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Trains; what was logged.
inline std::string run(const TestFolder& folder, const std::vector<std::string>& more) {
  const JobConfig config = small_job(folder, words(more));
  ::testing::internal::CaptureStdout();
  try {
    const Log log;
    EXPECT_EQ(train(*build_run(config, World(), log)), ExitCode::success);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::vector<double> norms(const TestFolder& folder) {
  return column<double>(metrics_of(folder, "grad_norm"), "grad_norm");
}

/// Everything that rank 0 saved at that step: weights, moments, schedule, data position, progress.
inline std::string saved(const TestFolder& folder, int64_t step) {
  return read_file(folder / fmt::format("out/checkpoint/step-{}/__0_0.distcp", step));
}

inline std::vector<std::string> data_files(const TestFolder& folder, int64_t step) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / fmt::format("out/checkpoint/step-{}", step))) {
    if (entry.path().extension() == ".distcp") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_FALSE(names.empty());
  return names;
}

/// The same job as `ranks` ranks, threads of this process; metrics are rank 0's.
inline void run_together(const TestFolder& folder, int64_t ranks, const std::vector<std::string>& more) {
  const JobConfig config = small_job(folder, words(more));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ::testing::internal::CaptureStdout();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      World world;
      world.rank = world.local_rank = rank;
      world.size = ranks;
      world.host_ranks.resize(static_cast<size_t>(ranks));
      std::iota(world.host_ranks.begin(), world.host_ranks.end(), 0);
      world.cores = 1;
      world.store = store;
      const Log log;
      EXPECT_EQ(train(*build_run(config, world, log)), ExitCode::success);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ::testing::internal::GetCapturedStdout();
}

}  // namespace titan::test
