// Stands in for CUDA graphs where there is no GPU: replaying runs the recorded code again, into the memory of its first
// results, on what then is where it reads.
#pragma once

#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

#include "titan/parallel/work_graph.h"

namespace titan {

struct ReplayCounts {
  int64_t recorded = 0;
  int64_t runs = 0;
  int64_t prepared = 0;
  int64_t fits = 1'000'000;  // so many graphs; the next has no memory, after its host code has run
  bool recording = false;    // while that code runs which shall not be recorded
  int64_t given_up = 0;
};

class ReplayedWork : public GraphCapture {
 public:
  explicit ReplayedWork(std::shared_ptr<ReplayCounts> counts) : counts_(std::move(counts)) {
    given_up = [counts = counts_](const std::string&) { ++counts->given_up; };
  }

  void prepare() override { ++counts_->prepared; }
  std::unique_ptr<CapturedGraph> record(std::function<HiddenStates()> body) override {
    if (counts_->recorded == counts_->fits) {
      counts_->recording = true;
      body();
      throw GraphsDoNotFit("out of memory");
    }
    ++counts_->recorded;
    return std::make_unique<Work>(std::move(body), counts_);
  }
  at::Tensor unowned(const at::Tensor& tensor) override { return view_of(tensor); }

 private:
  /// Another tensor in the same memory, as with CUDA's graphs: nothing that is known of the first is known of it.
  static at::Tensor view_of(const at::Tensor& tensor) {
    return at::from_blob(
        tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {}, tensor.options());
  }

  class Work : public CapturedGraph {
   public:
    Work(std::function<HiddenStates()> body, std::shared_ptr<ReplayCounts> counts)
        : body_(std::move(body)), counts_(std::move(counts)) {}
    HiddenStates run() override {
      ++counts_->runs;
      HiddenStates fresh = body_();
      if (results_.empty()) return results_ = std::move(fresh);
      HiddenStates views;
      for (size_t i = 0; i < results_.size(); ++i) {
        results_[i].copy_(fresh[i]);
        views.push_back(view_of(results_[i]));
      }
      return views;
    }

   private:
    std::function<HiddenStates()> body_;
    std::shared_ptr<ReplayCounts> counts_;
    HiddenStates results_;
  };

  std::shared_ptr<ReplayCounts> counts_;
};

}  // namespace titan
