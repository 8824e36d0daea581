// The checkpoints in a folder: finding them, renaming damaged ones, retention. Called by rank 0 only.
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
  bool is_link = false;    // not made by this program; never deleted
  bool is_export = false;  // exported in Hugging Face's format; never deleted
  bool is_unseen = false;  // cannot be listed now; never deleted

  bool operator==(const FoundCheckpoint&) const = default;
};

/// True if one folder's `files` contain a manifest or an index: it is a checkpoint, complete or not.
bool is_checkpoint(const std::vector<StorageEntry>& files);
/// The same for a folder; false if it cannot be listed.
bool holds_checkpoint(Storage& storage, const std::filesystem::path& folder);

/// Folders named step-N with a manifest, an index or safetensors, newest first, and all links of that name. Dangling
/// links and folders that cannot be listed are included as unseen. Everything else is ignored.
std::vector<FoundCheckpoint> find_checkpoints(Storage& storage, const std::filesystem::path& root);

/// A hint for users who pass the folder of a run or of its checkpoints instead of one checkpoint: a sentence that names
/// the newest one in it; empty if there is none.
std::string newest_inside(Storage& storage, const std::filesystem::path& folder);

/// Renames step-N to damaged-N, unless it is a link.
void set_aside(Storage& storage, const std::filesystem::path& root, int64_t step);

/// Throws DamageError if a folder named step-N holds another step: renamed or copied, it could remain the newest
/// forever. step-0 may hold any step: a seed checkpoint may come from any run.
void expect_step(const std::filesystem::path& folder, int64_t step);

/// Throws StorageError if a file has the name of the checkpoint to save; this program must not move such a file.
void expect_no_file(Storage& storage, const std::filesystem::path& folder);

/// A sentence for each file under `root` that has a checkpoint's name.
std::vector<std::string> files_in_the_way(Storage& storage, const std::filesystem::path& root);

/// Deletes `folder` under `root`, which a new checkpoint of `step` has replaced. Exported Hugging Face models and links
/// are renamed and kept.
void put_away_replaced(Storage& storage, const std::filesystem::path& root, const std::filesystem::path& folder,
                       int64_t step);

/// Called before a run looks for a checkpoint to load: restores checkpoints and exports whose replacement was
/// interrupted. Returns a sentence with the reason for each that could not be restored.
std::vector<std::string> give_back(Storage& storage, const std::filesystem::path& root);

/// Called at the start of a run: does the same, and removes folders that earlier runs left partly written or partly
/// deleted. Returns a sentence with the reason for each that could not be removed.
std::vector<std::string> clean_leftovers(Storage& storage, const std::filesystem::path& root);

/// For a run that resumes from an earlier step, `step`: renames checkpoints and exports of later steps, so that the
/// next start resumes from what this run saves. Of a link to a folder elsewhere, the link is renamed. Returns the
/// steps, newest first.
std::vector<int64_t> put_aside_later(Storage& storage, const std::filesystem::path& root, int64_t step);

/// A fact in the manifest: true if the checkpoint holds the model alone, so that no run can resume from it.
inline constexpr const char* kModelAlone = "model_alone";

struct Retention {
  int64_t keep_latest = 0;              // 0: keep all
  int64_t keep_every = 0;               // multiples of it are always kept; 0: none
  std::optional<int64_t> trusted = {};  // the newest up to this step is kept, too
};

/// Deletes the checkpoints that `retention` does not keep. The newest one with a manifest is always kept. Checkpoints
/// of the model alone are kept and not counted, since no run can resume from them. `newest`: the step just saved. Later
/// steps exist if the run resumed from an earlier checkpoint; they are not counted, and kept until the run reaches
/// them. Retries deletions that an earlier call could not finish. Returns a sentence for each checkpoint that could not
/// be deleted.
std::vector<std::string> delete_old(Storage& storage, const std::filesystem::path& root, const Retention& retention,
                                    int64_t newest = std::numeric_limits<int64_t>::max());

// Prefixes of the folders under the root of all checkpoints. Other programs search for "step-N", so only checkpoints
// have that name.

inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kSavingPrefix = "saving-";
inline constexpr std::string_view kDeletingPrefix = "deleting-";
inline constexpr std::string_view kDamagedPrefix = "damaged-";
inline constexpr std::string_view kReplacedPrefix = "replaced-";

}  // namespace titan
