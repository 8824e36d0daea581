// The checkpoints in a folder: finding them, setting damaged ones aside, deleting old ones. Rank 0's business alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

struct FoundCheckpoint {
  int64_t step = 0;
  bool has_manifest = false;
  bool is_link = false;    // somebody else's; never deleted
  bool is_export = false;  // a finished model in Hugging Face's form; never deleted
  bool is_unseen = false;  // it cannot be looked into now; never deleted

  bool operator==(const FoundCheckpoint&) const = default;
};

/// Whether files that are in one folder make it a checkpoint, whole or not: a manifest or an index.
bool is_checkpoint(const std::vector<StorageEntry>& files);
/// The same of a folder; false for one that cannot be looked into.
bool holds_checkpoint(Storage& storage, const std::filesystem::path& folder);

/// Folders named step-N with a manifest, an index or safetensors, the newest first, and links of that name, wherever
/// they lead: one that leads nowhere is a checkpoint that cannot be had now, as is a folder that cannot be looked into.
/// Anything else is passed over.
std::vector<FoundCheckpoint> find_checkpoints(Storage& storage, const std::filesystem::path& root);

/// For people who name the folder of a run, or of its checkpoints, where one checkpoint is asked for: a sentence with
/// the newest one there; empty when there is none.
std::string newest_inside(Storage& storage, const std::filesystem::path& folder);

/// Renames step-N so that it is no checkpoint any more, unless it is a link.
void set_aside(Storage& storage, const std::filesystem::path& root, int64_t step);

/// Throws DamageError for a folder that is called step-N and holds another step: renamed or copied, it would be the
/// newest for ever. step-0 may hold any: a seed comes from anywhere.
void expect_step(const std::filesystem::path& folder, int64_t step);

/// Throws StorageError when what is called like the checkpoint that is to be saved is a file, and not this program's to
/// move.
void expect_no_file(Storage& storage, const std::filesystem::path& folder);

/// A sentence for each file under `root` that is called like a checkpoint.
std::vector<std::string> files_in_the_way(Storage& storage, const std::filesystem::path& root);

/// Of `folder` under `root`, which a new checkpoint of `step` has replaced: deletes it, but a finished model in Hugging
/// Face's form gets another name and stays, and so does a link, with all that it leads to.
void put_away_replaced(Storage& storage, const std::filesystem::path& root, const std::filesystem::path& folder,
                       int64_t step);

/// Before a run looks for one to begin with: puts back a checkpoint, or a finished model, that was about to be
/// replaced. The sentences say what could not be put back, and why.
std::vector<std::string> give_back(Storage& storage, const std::filesystem::path& root);

/// At the start of a run: the same, and removes what earlier runs left half written or half deleted. What cannot be
/// removed stays; the sentences say what and why.
std::vector<std::string> clean_leftovers(Storage& storage, const std::filesystem::path& root);

/// A run resumes from `step`, an earlier one: what was saved of later steps, finished models included, gets another
/// name, so that the next start resumes from what this run saves. Links stay. Returns the steps, the newest first.
std::vector<int64_t> put_aside_later(Storage& storage, const std::filesystem::path& root, int64_t step);

/// A manifest's fact: true of a checkpoint that no run can resume from.
inline constexpr const char* kModelAlone = "model_alone";

struct Retention {
  int64_t keep_latest = 0;  // 0: all
  int64_t keep_every = 0;   // those at multiples of it stay; 0: none are special
};

/// Deletes the checkpoints that `retention` does not keep. The newest one with a manifest stays in any case; those that
/// hold a finished run's model alone stay, too, and are not counted: a run resumes from what is before them.
/// `newest`: the step just saved. Those of later steps are there when the run was taken up again from an earlier one;
/// they are not counted and stay until it gets there. What an earlier call could not finish is tried again. Failures
/// are returned as sentences, one for each checkpoint that could not be deleted.
std::vector<std::string> delete_old(Storage& storage, const std::filesystem::path& root, const Retention& retention,
                                    int64_t newest = std::numeric_limits<int64_t>::max());

// Names of the folders beside each other under the folder of all checkpoints. Only checkpoints have "step-N" in theirs,
// because other programs search for that.

inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kSavingPrefix = "saving-";
inline constexpr std::string_view kDeletingPrefix = "deleting-";
inline constexpr std::string_view kDamagedPrefix = "damaged-";
inline constexpr std::string_view kReplacedPrefix = "replaced-";

}  // namespace titan
