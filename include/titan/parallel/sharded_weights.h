// Weights that come and go: each rank owns a shard of every parameter (FSDP; with replicas of the shards HSDP), gathers
// a group's shards into a slot of memory before a unit runs, and adds up and cuts the group's gradients after it.
// Groups take turns in the slots as the plan says.
#pragma once

#include <memory>
#include <vector>

#include "titan/parallel/memory_arena.h"
#include "titan/parallel/residency.h"

namespace titan {

/// Memory that several groups use one after the other. It remembers whose weights it holds and of which version, so
/// that asking again for what is still there costs nothing.
struct Slot {
  at::Tensor memory;  // bytes
  const void* holder = nullptr;
  uint64_t version = 0;
  int64_t users = 0;  // acquires without release
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

  void prefetch(const Use& use) override;
  void acquire(const Use& use) override;
  void release(const Use& use) override;
  void gradient_storage() override;
  void reduce(bool is_last) override;
  bool advance() override;
  void settle() override;
  bool reduces() const override {
    return shards_ > 1;
  }  // sums over replicas, of what leaves for the host, are waited for
  void add_twin() override;
  void send_home() override;
  void arrive() override;
  void finish_step() override;
  int64_t gradient_bytes() const override { return static_cast<int64_t>(gradient_shards_.nbytes()); }
  void weights_changed() override;
  at::Tensor largest_magnitudes() override;
  void set_largest_magnitudes(const at::Tensor& largest) override;

 private:
  void refresh_sends();
  /// Scales of weights that travel in float8, from the masters of all ranks.
  void refresh_scales();
  void start_gather(const at::Tensor& memory);
  void start_scatter();
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
  uint64_t version_ = 1;
  uint64_t sent_version_ = 0;
  uint64_t scaled_version_ = 0;

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
  bool gradients_open_ = false;
  // Where gradient shards are that go to the host: complete on the device, or between the two.
  bool may_leave_ = false;
  bool on_their_way_ = false;
};

}  // namespace titan
