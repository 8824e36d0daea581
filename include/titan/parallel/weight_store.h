// The weight store: holds the weights and gradients of one weight group. Each call is one instruction of a program
// (program.h), which decides the order. Each rank owns a shard of every parameter and gathers the group's shards into a
// memory slot before a unit runs (FSDP; HSDP with replicas). Groups share the slots as the plan says. Without slots
// there is one shard and weights are resident: units read the masters or their compute copies, and the unsharded
// gradient is the gradient shard (one device; DDP with replicas).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "titan/distributed/mesh_communicators.h"
#include "titan/ops/float8.h"
#include "titan/ops/parameter.h"
#include "titan/parallel/host_offload.h"
#include "titan/plan/plan.h"

namespace titan {

at::ScalarType scalar_type(ElementType type);

/// Memory that several groups use in turn.
struct Slot {
  at::Tensor memory;             // [bytes]
  const void* holder = nullptr;  // the group whose unsharded weights it holds; unused for gradients
  bool in_use = false;           // being read or written now
  // The copy of gradients from this slot to the host, and the first byte that it reads.
  AsyncCopy to_host{};
  int64_t to_host_begin = 0;

  /// The device's stream waits for that copy before it may write here.
  void wait_to_host();
};

/// The slots of a plan on the compute device, shared by all groups.
struct SlotPool {
  SlotPool(const Plan& plan, MemoryArena& device);

  /// Weight slots in use now.
  int64_t in_use() const;
  int64_t weight_bytes() const;
  int64_t gradient_bytes() const;

  std::vector<Slot> weights;
  std::vector<Slot> gradients;
  std::vector<at::Tensor> messages;  // [bytes]: gradients in a narrower dtype, while they are reduced
};

class WeightStore {
 public:
  /// `parameters` in the group's storage order: neighbours form fused operands. `offload`: shards are in its host
  /// memory, units run on its device. `slots` null: weights are resident.
  WeightStore(const WeightGroupPlan& plan, std::vector<Parameter*> parameters, const PlanRequest& request,
              std::shared_ptr<HostOffload> offload, std::shared_ptr<SlotPool> slots = nullptr,
              const MeshCommunicators& communicators = {}, Float8Casts casts = make_aten_float8_casts());

  /// REFRESH: computes the compute copies of this rank's shard, unless the optimizer has written them
  /// (Parameter::compute_copy_written), and float8 scales: of resident weights, and those used to cast a float8 shard.
  void refresh();
  /// UNSHARD: starts the all-gather of the weights into their slot.
  void unshard();
  /// WAIT_UNSHARD: Parameter::weight() is valid from here on.
  void wait_unshard();
  /// SCALE: computes the float8 scales of the unsharded weights.
  void scale();
  /// SCALE without a group: computes the scales of all weights that are gathered in float8 from the shards of all
  /// ranks, with one all-reduce for all groups that are sharded over the same axes.
  static void scale_shards(const std::vector<WeightStore*>& stores);
  /// RESHARD: the slot may be overwritten; its content stays valid until the next UNSHARD into it.
  void reshard();

  /// OPEN_GRADIENT: Parameter::gradient() has storage from here on.
  void open_gradient();
  /// CLOSE_GRADIENT: the group's gradient of the step is complete on this rank. Without a reduction the gradient shards
  /// are valid.
  void close_gradient();
  /// REDUCE_SCATTER and ALL_REDUCE: start the sum over shards, and the sum of shards over replicas.
  void reduce_scatter();
  void all_reduce();
  /// WAIT_REDUCE: waits for the sum that was started last. After the last sum the gradient shards are valid.
  void wait_reduce();
  /// REDUCE_PARTIAL: sums the gradient shards of weights that every tensor-parallel rank holds whole.
  void reduce_partial();
  /// ADD_TIED: adds the gradient shards of the other pipeline rank that holds these weights.
  void add_tied();
  /// TO_HOST: starts the copy of the gradient shards to the host. They are undefined until end_to_host().
  void to_host();
  /// Called after WAIT_HOST has waited for the copies: the gradient shards are valid on the host.
  void end_to_host();
  /// ZERO_GRADIENT: the optimizer has read the gradient shards. Parameters release them; nothing is set to zero.
  void zero_gradient();

  /// Bytes held now for the gradients that the optimizer reads.
  int64_t gradient_bytes() const {
    return gradient_shards_.defined() ? static_cast<int64_t>(gradient_shards_.nbytes()) : 0;
  }
  /// False if the whole group is frozen: it has no gradient, and no instruction about one names it.
  bool is_trained() const { return !trained_.empty(); }
  /// Call after the masters were written (initialisation, load, optimizer): their compute copies are stale, unless the
  /// optimizer updated them too.
  void weights_changed();
  /// The parameters whose compute copy is not what REFRESH makes of the master: their bits have changed since. None
  /// while the copies are stale. Waits for the device.
  std::vector<const Parameter*> changed_copies() const;

 private:
  /// The same for stores with the same communicators.
  static void scale_shards_alike(const std::vector<WeightStore*>& stores);
  /// The amax of each of `weights`, this rank's compute copies of the float8 weights [n]: read, unless the optimizer
  /// has found it.
  at::Tensor amaxes_of(const std::vector<at::Tensor>& weights);
  /// Sets the float8 scales from `largest`: each float8 weight's current amax, over all ranks. Scales stay at their
  /// addresses.
  void set_amaxes(const at::Tensor& largest);
  /// Adjacent views into `memory`, one per trained parameter: each holds the elements of its `box` in `type`.
  std::vector<at::Tensor> gradient_views(const at::Tensor& memory, Box ParameterPlan::*box, at::ScalarType type) const;
  /// Gives the trained parameters their shards of the gradient.
  void set_gradient_shards(const at::Tensor& memory);
  /// The unsharded gradients (bytes) in the dtype of their reduction.
  const at::Tensor& narrowed_gradients();
  /// This rank's sums: in the dtype of the reduction, and in fp32 on the device.
  at::Tensor reduced_sums() const;
  at::Tensor reduced_gradients() const;
  /// Makes the sums over all ranks the gradient shards.
  void complete_gradients();
  void free_gradient_slot();

  WeightGroupPlan plan_;
  std::vector<Parameter*> parameters_;
  std::vector<size_t> trained_;  // of these; gradients are in memory in this order
  int64_t trained_numel_, trained_shard_numel_;
  int64_t shards_;
  bool transient_gradients_;  // resident: gradient memory exists from OPEN_GRADIENT to ZERO_GRADIENT
  std::shared_ptr<HostOffload> offload_;
  std::shared_ptr<SlotPool> slots_;  // null: weights are resident
  // Null: this rank is alone in it.
  std::shared_ptr<Communicator> gathering_, scattering_, replicating_, tensor_, tied_;
  Float8Casts casts_;

  // These are where the shards are: on the host with CPU offload, else on the device.
  at::Tensor masters_;          // [elements], training.dtype
  at::Tensor copies_;           // [bytes] of the shards as gathered; undefined if those are the masters
  at::Tensor amaxes_;           // fp32 [float8 weights]: Parameter::amax of each; undefined: not wanted
  at::Tensor gradient_shards_;  // [trained elements], plan_.gradient; resident: undefined until OPEN_GRADIENT

  at::Tensor message_;   // [trained elements], resident: gradients in the reduction's dtype, until they are reduced
  Float8Scales scales_;  // on the compute device
  bool copied_ = false;  // the copies match the current masters
  bool scaled_ = false;  // the scales match the current masters, if the shards are gathered in float8
  bool amaxes_known_ = false;  // amaxes_ match the current masters

  /// An all-gather or reduction in flight, and the copies to make when it ends.
  struct Transfer {
    AsyncCopy copy;
    Pending pending;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // (target, source), of one shape
    std::vector<at::Tensor> padded_inputs;  // of any shapes, kept alive to the end, as in the memory plan
    bool started = false;

    void finish();
  };
  Transfer gather_;
  Transfer reduction_;
  Pending replication_;  // the all-reduce over replicas
  enum class Offloading { none, complete_on_device, copying };
  Offloading offloading_ = Offloading::none;  // CPU offload: where the gradient shards are until end_to_host()
};

/// One for each weight group, in the plan's order.
using WeightStores = std::vector<std::unique_ptr<WeightStore>>;

}  // namespace titan
