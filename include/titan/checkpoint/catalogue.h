// The checkpoints in a folder: finding them, setting damaged ones aside, deleting old ones. Rank 0's business alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

struct FoundCheckpoint {
  int64_t step = 0;
  bool has_manifest = false;
  bool is_link = false;  // somebody else's; never deleted

  bool operator==(const FoundCheckpoint&) const = default;
};

/// Folders named step-N with a manifest or an index, the newest first. Anything else is passed over.
std::vector<FoundCheckpoint> find_checkpoints(Storage& storage, const std::filesystem::path& root);

/// Renames step-N so that it is no checkpoint any more; the new name.
std::string set_aside(Storage& storage, const std::filesystem::path& root, int64_t step);

/// At the start of a run: removes what earlier runs left half written or half deleted, and puts back a checkpoint that
/// was about to be replaced. What cannot be removed stays; the sentences say what and why.
std::vector<std::string> clean_leftovers(Storage& storage, const std::filesystem::path& root);

struct Retention {
  int64_t keep_latest = 0;  // 0: all
  int64_t keep_every = 0;   // those at multiples of it stay; 0: none are special
};

/// Deletes the checkpoints that `retention` does not keep. The newest one with a manifest stays in any case. Failures
/// are returned as sentences, one for each checkpoint that could not be deleted.
std::vector<std::string> delete_old(Storage& storage, const std::filesystem::path& root, const Retention& retention);

}  // namespace titan
