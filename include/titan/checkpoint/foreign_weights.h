// Weights between our names and order of rows and another program's: which tensors fit, and each box of a parameter
// read from theirs, or each stretch of their rows read from ours. The permutation is an index map of the whole tensor,
// so any rank reads just its box.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/model/exchange.h"

namespace titan {

/// What of a model is there.
struct Fit {
  int64_t wanted = 0;  // tensors of the model
  int64_t found = 0;   // of them, with the right shape
  int64_t parameters = 0;
  std::vector<std::string> missing;     // names
  std::vector<std::string> unexpected;  // names
  std::vector<std::string> unfit;       // sentences: another shape, a dtype that is no number's

  bool complete() const { return missing.empty() && unexpected.empty() && unfit.empty(); }
  /// "291/291 tensors, 0 missing, 0 unexpected".
  std::string counts() const;
  /// What is wrong, with the first few names; empty when nothing is.
  std::string complaint() const;
};
Fit fit_of(const ForeignModel& model, const TensorSource& source);

/// Throws MismatchError naming the source when `fit_of` is not complete, or when a copy of a tied weight differs from
/// it.
Fit check_fit(const ForeignModel& model, TensorSource& source);

/// Reads `box` of a parameter, in our order, from their tensor. `into`: any device, strides and floating dtype. Needs
/// some 32 MiB besides.
void read_parameter(TensorSource& theirs, const ForeignTensor& tensor, const Box& box, const at::Tensor& into);

/// Rows that belong together in a stretch of their tensor: 1, or those of a head.
int64_t row_unit(const ForeignTensor& tensor);
/// Rows [first, first + count) of their tensor from our parameter, in its stored dtype; multiples of row_unit.
at::Tensor read_their_rows(TensorSource& ours, const ForeignTensor& tensor, int64_t first, int64_t count);
/// Rows of at most about 32 MiB, in multiples of `unit`.
int64_t rows_at_once(const LogicalTensor& tensor, int64_t unit);

/// The same names and order of rows as ours: a model's own form.
ForeignModel own_form(std::span<const LogicalTensor> parameters);

/// Rows of whole heads of `head_dim` rows [heads · head_dim, …]: numbers that turn together brought next to each other,
/// and back half a head apart (torchtitan.md section 2.6).
at::Tensor pairs_from_halves(const at::Tensor& rows, int64_t head_dim);
at::Tensor halves_from_pairs(const at::Tensor& rows, int64_t head_dim);

// The weights of Meta's releases: consolidated.NN.pth, one file for each rank that shared every matrix. Their parts are
// seen here as the whole tensors that they are cut from.

class MetaWeights : public TensorSource {
 public:
  /// `model`: whose shapes say along which dimension a tensor was cut; a tensor that is whole in every file is read
  /// from the first. Throws Error(storage) when there are no such files, DamageError or PickleError when they are not
  /// what torch.save writes.
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

}  // namespace titan
