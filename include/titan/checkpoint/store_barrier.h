// Ranks that meet through the run's key-value store: no collective, no GPU, and safe beside training, because the
// writing thread has a connection of its own.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "titan/checkpoint/save.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

/// How long a meeting waits for a rank, which may write or read for long.
struct BarrierWaits {
  /// A rank that does not come within this time is an Error(peer_failure).
  std::chrono::milliseconds limit;
  /// A rank that gives no sign of life for about this time ends the run (PatientWait); for one that lives, a line is
  /// told as often.
  std::chrono::milliseconds patience = limit;
  std::shared_ptr<WaitForGraph> waits = nullptr;  ///< where this rank notes whom it waits for; may be null
  std::function<void(const std::string& line)> tell = nullptr;  ///< called by the thread that waits; may be empty
};

/// `store`: used by this meeting alone, a clone where others use the same; `name` keeps its keys apart.
std::unique_ptr<RankBarrier> make_store_barrier(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, BarrierWaits waits);

}  // namespace titan
