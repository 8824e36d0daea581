// Runs the units of a model: eagerly, or through recorded graphs. A pass of a step has the same units, shapes and
// addresses each time: it runs eagerly twice, is recorded the third time and then replayed.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "titan/model/model.h"
#include "titan/parallel/host_offload.h"
#include "titan/parallel/work_graph.h"

namespace titan {

/// State of one unit and one microbatch between forward and backward: the leaves of its autograd graph, the gradient
/// edges of its outputs (not the outputs), and the context of its operations.
struct UnitState {
  HiddenStates leaves;
  OffloadedTensors offloaded;  // the leaves and the recorder's kept tensors, while they are on the host
  std::vector<torch::autograd::Edge> edges;
  std::unique_ptr<UnitContext> context;
};

/// Runs one unit's forward or backward: eagerly, or through recorded graphs.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  virtual HiddenStates forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) = 0;
  /// Gradients of the outputs → gradients of the inputs. Consumes the state.
  virtual HiddenStates backward(Unit& unit, const HiddenStates& output_gradients, const BatchContext& batch,
                                UnitState& state) = 0;
  /// The next forward is the first of a step.
  virtual void finish_step() {}
};

class EagerRunner : public UnitRunner {
 public:
  HiddenStates forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) override;
  HiddenStates backward(Unit& unit, const HiddenStates& output_gradients, const BatchContext& batch,
                        UnitState& state) override;
};

class GraphRunner : public UnitRunner {
 public:
  /// `units`: those that may be recorded, in forward order. Each microbatch runs all of them forward and then backward
  /// before the next begins. They do not communicate and read only shape and positions of the batch. Other units run
  /// eagerly.
  GraphRunner(std::vector<const Unit*> units, std::unique_ptr<GraphCapture> recorder);

  HiddenStates forward(Unit& unit, const HiddenStates& input, const BatchContext& batch, UnitState& state) override;
  HiddenStates backward(Unit& unit, const HiddenStates& output_gradients, const BatchContext& batch,
                        UnitState& state) override;
  void finish_step() override { first_of_step_ = true; }

  /// Number of runs of a unit in one direction, so far.
  struct Counts {
    int64_t eager = 0;
    int64_t recorded = 0;
    int64_t replayed = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  /// A unit's graphs for one kind of pass.
  struct Entry {
    UnitState state;
    BatchContext batch;
    HiddenStates input, gradient;  // memory that the graphs read: the tensors, then the known amaxes of some of them
    HiddenStates held_input, held_gradient;  // keep that memory allocated while the rest is recorded
    // Indices of the tensors whose amax is an input or an output of the graph, forward and backward.
    std::vector<size_t> input_amaxes, output_amaxes, gradient_amaxes, result_amaxes;
    std::vector<const void*> forward_addresses, backward_addresses;
    std::vector<Parameter*> written;  // whose gradients the backward writes
    std::unique_ptr<CapturedGraph> forward, backward;
    bool usable = true;  // false after its weights have moved
  };
  /// Passes with equal keys are the same work: first or later microbatch (gradients are written or added to), and
  /// shapes.
  using PassKey = std::vector<int64_t>;
  struct Chain {
    int64_t seen = 0;
    at::Tensor positions;  // int64 [B or 1, T], or undefined
    std::vector<Entry> entries;
  };
  enum class Mode { eager, record, replay };

  void begin_pass(const HiddenStates& input, const BatchContext& batch);
  HiddenStates record_forward(size_t index, Unit& unit, const HiddenStates& input, const BatchContext& batch,
                              UnitContext& context);
  HiddenStates record_backward(size_t index, Unit& unit, const HiddenStates& output_gradients, ScaleTable& scales);
  /// Runs eagerly from here on. Frees the graphs, but keeps what they read: backward_after_all needs it in this pass.
  void give_up(const GraphsDoNotFit& reason);
  HiddenStates backward_after_all(size_t index, Unit& unit, const HiddenStates& output_gradients,
                                  const BatchContext& batch, const UnitContext& context);
  /// The memory in which a graph reads `given`: the previous graph's result, or else new memory.
  HiddenStates place_for(const HiddenStates& given);
  size_t index_of(const Unit& unit) const;

  EagerRunner eager_;
  std::vector<const Unit*> units_;
  std::map<const Unit*, size_t> indices_;
  std::vector<std::vector<Parameter*>> parameters_;  // of each unit
  std::unique_ptr<GraphCapture> recorder_;
  std::map<PassKey, Chain> chains_;
  Chain* chain_ = nullptr;
  Mode mode_ = Mode::eager;
  std::vector<bool> by_graph_;  // true if the unit's forward of this pass was a graph
  HiddenStates last_;           // the last graph's results, with amaxes
  bool first_of_step_ = true;
  bool given_up_ = false;
  Counts counts_;
};

class MicrobatchGraphs {
 public:
  /// Forward and backward of the given microbatch; returns its sums: the loss (scalar) and, if there are some,
  /// statistics [numel of all]. It does not communicate. It can be called again after it has thrown GraphsDoNotFit.
  using Compute = std::function<std::vector<at::Tensor>(const BatchContext&)>;

  /// `parameters`: all whose weights are read or whose gradients are written.
  MicrobatchGraphs(std::vector<Parameter*> parameters, std::unique_ptr<GraphCapture> recorder);

  /// The sums of compute(batch), valid until the next run. Weights must be refreshed and gradients open.
  std::vector<at::Tensor> run(const BatchContext& batch, const Compute& compute);
  /// The next microbatch is the first of a step.
  void finish_step() { first_of_step_ = true; }

 private:
  struct Entry {
    int64_t seen = 0;
    BatchContext batch;  // memory that the graph reads
    std::vector<const void*> addresses;
    std::vector<Parameter*> written;  // whose gradients it writes
    std::unique_ptr<CapturedGraph> graph;
    bool usable = true;  // false after weights or gradients have moved
  };

  /// The graph's entry for this microbatch; null: it runs eagerly.
  Entry* entry_for(const BatchContext& batch);
  std::vector<at::Tensor> record(Entry& entry, const BatchContext& batch, const Compute& compute);
  std::vector<at::Tensor> record_or_compute(Entry& entry, const BatchContext& batch, const Compute& compute);

  std::vector<Parameter*> parameters_;
  std::unique_ptr<GraphCapture> recorder_;         // null after graphs did not fit
  std::map<std::vector<int64_t>, Entry> entries_;  // by first or later microbatch, and shapes
  bool first_of_step_ = true;
};

}  // namespace titan
