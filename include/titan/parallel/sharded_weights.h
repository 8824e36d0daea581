// Weights that come and go: each rank owns a shard of every parameter (FSDP; with replicas of the shards HSDP), gathers
// a group's shards into a slot of memory before a unit runs, and adds up and cuts the group's gradients after it.
// Groups take turns in the slots as the plan says.
#pragma once

#include <memory>
#include <vector>

#include "titan/parallel/memory_arena.h"
#include "titan/parallel/residency.h"

namespace titan {

/// Memory that several groups use one after the other.
struct Slot {
  at::Tensor memory;             // bytes
  const void* holder = nullptr;  // whose weights or gradients it holds
  bool in_use = false;           // they are read or written now
  // Gradients that are copied from here to the host: of bytes from this one on.
  Crossing leaving{};
  int64_t leaving_begin = 0;
};

/// The slots of a plan, weights and gradients, on the compute device. Shared by all groups.
class SlotPool {
 public:
  SlotPool(const Plan& plan, MemoryArena& device);

  Slot& weights(size_t index) { return weights_.at(index); }
  Slot& gradients(size_t index) { return gradients_.at(index); }
  /// Bytes for gradients that travel narrowed.
  const at::Tensor& messages(size_t index) { return messages_.at(index); }
  /// Weight slots in use now.
  int64_t in_use() const;
  int64_t weight_bytes() const;
  int64_t gradient_bytes() const;

 private:
  std::vector<Slot> weights_;
  std::vector<Slot> gradients_;
  std::vector<at::Tensor> messages_;
};

class ShardedWeights : public Residency {
 public:
  /// `link` says where shards live and where units run.
  ShardedWeights(const WeightGroupPlan& plan, std::vector<Parameter*> parameters, const PlanRequest& request,
                 std::shared_ptr<SlotPool> slots, std::shared_ptr<HostLink> link, GroupCommunicators communicators,
                 Float8Casts casts = make_aten_float8_casts());
  ~ShardedWeights() override;

  void refresh() override;
  void unshard() override;
  void wait_unshard() override;
  void scale() override;
  void reshard() override;
  void open_gradient() override;
  void close_gradient() override;
  void reduce_scatter() override;
  void all_reduce() override;
  void wait_reduce() override;
  void reduce_partial() override;
  void add_tied() override;
  void to_host() override;
  void arrive() override;
  void zero_gradient() override;
  int64_t gradient_bytes() const override { return static_cast<int64_t>(gradient_shards_.nbytes()); }
  void weights_changed() override;
  at::Tensor largest_magnitudes() override;
  void set_largest_magnitudes(const at::Tensor& largest) override;

 private:
  /// Scales of weights that travel in float8, from the masters of all ranks.
  void refresh_scales();
  void start_gather(const at::Tensor& memory);
  /// Gradients that travel narrowed are copied to where they travel.
  void narrow_gradients();
  /// The sums of all ranks are there: they become the gradient shards.
  void complete_gradients();
  /// The gradient slot may be used by others.
  void free_gradient_slot();
  /// What the device writes into the slot from here on comes after copies to the host that read it.
  static void order_leaving(Slot& slot);
  /// What travels while gradients are reduced: in the gradient slot, or narrowed in a slot of messages. First the
  /// unsharded gradients, then this rank's sums as one block.
  at::Tensor travelling_gradients() const;
  at::Tensor travelling_sums() const;
  /// Where this rank's sums are kept on the device, fp32.
  at::Tensor reduced_gradients() const;
  std::vector<at::Tensor> shards_of(const at::Tensor& block) const;
  /// Views of a slot of gradients: unsharded, and behind them (offload) this rank's shards as one block.
  std::vector<at::Tensor> unsharded_in(const at::Tensor& memory, at::ScalarType type) const;
  at::Tensor staged_in(const at::Tensor& memory, at::ScalarType type) const;
  /// Views of a slot of weights, each in what it is gathered in; and the same of a block of shards.
  std::vector<at::Tensor> weights_in(const at::Tensor& memory) const;
  std::vector<at::Tensor> gathered_shards_of(const at::Tensor& bytes) const;
  at::ScalarType gathered_type(size_t index) const;
  bool travels_in_float8(size_t index) const { return plan_.gathers_float8 && plan_.parameters[index].in_float8; }

  WeightGroupPlan plan_;
  std::vector<Parameter*> parameters_;
  int64_t shards_;
  std::shared_ptr<SlotPool> slots_;
  std::shared_ptr<HostLink> link_;
  GroupCommunicators communicators_;
  Float8Casts casts_;

  at::Tensor masters_;          // home, training.dtype
  at::Tensor copies_;           // home, bytes of the shards as they are gathered; undefined when they are the masters
  at::Tensor gradient_shards_;  // home, fp32
  Float8Scales scales_;         // on the compute device
  bool copied_ = false;         // the copies are of the present masters
  bool scaled_ = false;         // and so are scales of weights that travel in float8

  /// A gather or a reduction under way, with what has to be copied when it is over.
  struct Transfer {
    Crossing crossing;
    Pending pending;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // (target, source)
    std::vector<at::Tensor> padded_inputs;  // live to the end however soon the transport is done with them: as planned
    bool under_way = false;

    void finish();
  };
  Transfer gather_;
  Transfer reduction_;
  Pending replication_;  // the sums, over replicas
  // Where gradient shards are that go to the host: complete on the device, or between the two.
  bool may_leave_ = false;
  bool on_their_way_ = false;
};

}  // namespace titan
