// Weights of other programs: names and row orders, Meta's consolidated files, and checkpoints that one process writes
// from such weights or from another checkpoint. Tensors are streamed through bounded memory.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/checkpoint/training_state.h"
#include "titan/model/state_dict_adapter.h"

namespace titan {

/// How a source's tensors match a model.
struct Fit {
  int64_t wanted = 0;  // tensors of the model
  int64_t found = 0;   // of these, with the right shape
  int64_t parameters = 0;
  std::vector<std::string> missing;     // names
  std::vector<std::string> unexpected;  // names
  std::vector<std::string> unfit;       // sentences: another shape or a non-numeric dtype

  bool complete() const { return missing.empty() && unexpected.empty() && unfit.empty(); }
  /// "291/291 tensors, 0 missing, 0 unexpected".
  std::string counts() const;
  /// Describes the mismatch, with the first few names; empty if complete.
  std::string complaint() const;
};
Fit fit_of(const ForeignModel& model, const TensorSource& source);

/// `model` with the names that its tensors have in `source`: transformers' base models save theirs without "model.".
ForeignModel named_as_in(ForeignModel model, const TensorSource& source);

/// Throws MismatchError naming the source if `fit_of` is not complete, or if a copy of a tied weight differs.
Fit check_fit(const ForeignModel& model, TensorSource& source);

/// Reads `box` of a parameter, in our row order, from the foreign tensor. `into`: of the box's shape, any device,
/// strides and floating dtype. Needs about 32 MiB of extra memory.
void read_parameter(TensorSource& theirs, const ForeignTensor& tensor, const Box& box, const at::Tensor& into);

/// The granularity of row ranges in the foreign tensor: 1, or the rows of a head.
int64_t row_unit(const ForeignTensor& tensor);
/// Rows [first, first + count) of the foreign tensor from our parameter, in its stored dtype; multiples of row_unit.
at::Tensor read_their_rows(TensorSource& ours, const ForeignTensor& tensor, int64_t first, int64_t count);
/// Rows of at most about 32 MiB, in multiples of `unit`.
int64_t rows_at_once(const LogicalTensor& tensor, int64_t unit);

/// The identity mapping: our names and row order.
ForeignModel own_form(std::span<const LogicalTensor> parameters);

/// Rotary layouts of rows [heads · head_dim, …]: half-split to interleaved pairs, and back.
at::Tensor pairs_from_halves(const at::Tensor& rows, int64_t head_dim);
at::Tensor halves_from_pairs(const at::Tensor& rows, int64_t head_dim);

// Meta's consolidated.NN.pth, one file per tensor-parallel rank, presented as whole tensors.

class MetaWeights : public TensorSource {
 public:
  /// `model`: its shapes determine the sharded dimension of each tensor; replicated tensors are read from the first
  /// file. Throws Error(storage) if there are no such files, DamageError or PickleError if they are not files of
  /// torch.save.
  MetaWeights(Storage& storage, std::filesystem::path folder, const ForeignModel& model);

  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return folder_.string(); }

 private:
  struct Part {
    size_t file;
    Box box;
    StoredElements elements;
  };
  struct OpenFile {
    std::unique_ptr<CheckedReader> reader;
    std::map<std::string, StoredElements> tensors;
  };

  void open_files();
  void join(const std::string& name, const std::vector<int64_t>* whole);

  Storage& storage_;
  std::filesystem::path folder_;
  std::vector<OpenFile> files_;
  std::map<std::string, std::vector<Part>> parts_;
  std::map<std::string, LogicalTensor> tensors_;
};

// Conversions by a single process: another program's weights or a checkpoint to a checkpoint, and weights to a
// torch.save file. Streamed through bounded memory.

/// The contents of the checkpoint to write. `read` returns a box of a tensor [extents of box], contiguous, on the CPU.
struct StreamedState {
  std::vector<LogicalTensor> tensors;
  std::function<at::Tensor(size_t tensor, const Box& box)> read;
  std::vector<SavedValue> values = {};
  int64_t step = 0;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
};

/// Writes the checkpoint in pieces of at most 128 MiB, reads it back, and renames it to `folder`, which must not exist.
/// Throws what `read` throws, or StorageError if the storage fails; then no files are left behind.
void write_streamed(Storage& storage, const StreamedState& state, const std::filesystem::path& folder);

/// Writes the model as a checkpoint of step 0, in dtype `type`.
void import_weights(Storage& storage, TensorSource& theirs, const ForeignModel& model, at::ScalarType type,
                    const std::filesystem::path& folder, nlohmann::ordered_json facts);

/// The torchtitan release that will load a checkpoint.
struct TorchtitanForm {
  TorchtitanRelease release = TorchtitanRelease::february_2026;
  int64_t data_ranks = 0;       // data-parallel ranks; 0: the number that saved it
  bool decoupled_decay = true;  // AdamW's; used if the optimizer state does not have it (PyTorch before 2.7)
};
/// Writes a checkpoint of any program and release in `form`, so that this release of torchtitan loads it strictly. The
/// tensors of `tables` (any shapes) are written beside those of the model. Throws MismatchError for Muon's state and
/// for parameters that no model of that release has.
void write_for_torchtitan(Storage& storage, OpenCheckpoint& checkpoint, const TorchtitanForm& form,
                          const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder);

}  // namespace titan
