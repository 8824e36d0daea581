#include "titan/report/memory_snapshot.h"

#include <chrono>
#include <optional>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/gpu/cuda.h"

namespace titan {

MemorySnapshots::MemorySnapshots(std::filesystem::path folder, int64_t rank, const Log& log)
    : folder_(std::move(folder)), rank_(rank), log_(log) {
  cuda().record_history(kMostEntries);
  log_.info("Memory profiler active. Snapshots will be saved at {}", folder_.string());
}

MemorySnapshots::~MemorySnapshots() { cuda().record_history(std::nullopt); }

void MemorySnapshots::write(int64_t step) { write_to(fmt::format("iteration_{}", step)); }

void MemorySnapshots::write_at_exit(int64_t last_step) { write_to(fmt::format("iteration_{}_exit", last_step)); }

void MemorySnapshots::write_to(const std::string& name) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    make_folders(folder_ / name);
    const std::filesystem::path file = folder_ / name / fmt::format("rank{}_memory_snapshot.pickle", rank_);
    replace_own_file(file, cuda().history());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    log_.info("Dumped the memory snapshot {} in {:.2f} seconds", file.string(), seconds);
  } catch (const std::exception& error) {
    if (std::exchange(warned_, true)) return;
    log_.warning("profiling.save_memory_snapshot_folder: {}; there are no snapshots", error.what());
  }
}

}  // namespace titan
