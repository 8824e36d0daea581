// The weights of Meta's releases: consolidated.NN.pth, one file for each rank that shared every matrix. Their parts are
// seen here as the whole tensors that they are cut from.
#pragma once

#include <filesystem>
#include <memory>

#include "titan/checkpoint/tensor_source.h"
#include "titan/model/exchange.h"

namespace titan {

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
