// Runs a whole microbatch, forward and backward of all units, as one recorded graph: for a rank that is alone, whose
// units have nothing between them. As with GraphRunner the same microbatch runs eagerly twice, is recorded the third
// time and replayed from then on. What differs from step to step is copied to where the graph reads it: tokens, labels,
// positions and the scale of the loss.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "titan/model/unit.h"
#include "titan/parallel/work_graph.h"

namespace titan {

class MicrobatchGraphs {
 public:
  /// Forward and backward of the microbatch that it is given: its loss. It communicates with nobody.
  using Compute = std::function<at::Tensor(const BatchContext&)>;

  /// `parameters`: all whose weights it reads or whose gradients it writes.
  MicrobatchGraphs(std::vector<Parameter*> parameters, std::unique_ptr<WorkRecorder> recorder);

  /// The loss of compute(batch), valid until the next run. Weights and storage of gradients are there.
  at::Tensor run(const BatchContext& batch, const Compute& compute);
  /// The next microbatch is the first of a step.
  void finish_step() { first_of_step_ = true; }

 private:
  struct Entry {
    int64_t seen = 0;
    BatchContext batch;  // where the graph reads
    std::vector<const void*> addresses;
    std::vector<Parameter*> written;  // whose gradients it writes
    std::unique_ptr<WorkGraph> graph;
    bool usable = true;  // weights and gradients lie where they lay
  };

  /// The entry that this microbatch is an instance of; null where it has to run eagerly.
  Entry* entry_for(const BatchContext& batch);
  at::Tensor record(Entry& entry, const BatchContext& batch, const Compute& compute);

  std::vector<Parameter*> parameters_;
  std::unique_ptr<WorkRecorder> recorder_;
  std::map<std::vector<int64_t>, Entry> entries_;  // by first or later microbatch, and shapes
  bool first_of_step_ = true;
};

}  // namespace titan
