// Ranks that meet through the run's key-value store: no collective, no GPU, and safe beside training, because the
// writing thread has a connection of its own.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>

#include "titan/checkpoint/save.h"
#include "titan/distributed/peer_waits.h"

namespace titan {

/// `store`: used by this meeting alone, a clone where others use the same; `name` keeps its keys apart. A rank that
/// does not come within `timeout` is an Error(peer_failure). `waits`: where this rank notes whom it waits for; may be
/// null.
std::unique_ptr<RankMeeting> make_store_meeting(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, std::chrono::milliseconds timeout,
                                                std::shared_ptr<PeerWaits> waits = nullptr);

}  // namespace titan
