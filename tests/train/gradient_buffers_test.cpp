// Gradient accumulation straight into the buffer that is reduced: what is given to the collectives is the memory that
// the products added to, once a step, however many microbatches there were.
#include <gtest/gtest.h>

#include <set>

#include "comparison.h"

namespace titan {
namespace {

/// A tensor as a collective saw it: which storage, how large, where in it.
struct Seen {
  const void* storage;
  int64_t storage_bytes;
  int64_t offset;
  int64_t numel;
};

class Watching : public ForwardingCommunicator {
 public:
  Watching(std::shared_ptr<Communicator> inner, std::vector<Seen>& inputs, std::vector<Seen>& outputs)
      : ForwardingCommunicator(std::move(inner)), inputs_(inputs), outputs_(outputs) {}

 protected:
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    for (const at::Tensor& tensor : inputs) inputs_.push_back(seen(tensor));
    for (const at::Tensor& tensor : outputs) outputs_.push_back(seen(tensor));
    return ForwardingCommunicator::start_reduce_scatter(std::move(outputs), std::move(inputs));
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    for (const at::Tensor& tensor : tensors) inputs_.push_back(seen(tensor));
    return ForwardingCommunicator::start_all_reduce(std::move(tensors), reduction);
  }

 private:
  static Seen seen(const at::Tensor& tensor) {
    return {tensor.storage().data(), static_cast<int64_t>(tensor.storage().nbytes()), tensor.storage_offset(),
            tensor.numel()};
  }

  std::vector<Seen>& inputs_;
  std::vector<Seen>& outputs_;
};

TEST(GradientBuffers, AreReducedWhereProductsAddedToThemUnderFsdp) {
  LayoutRow row = row_named("fsdp2");
  row.accumulation = 4;
  std::vector<Seen> inputs, outputs;
  Fault watch;
  watch.communicators = [&](int64_t rank, MeshCommunicators& communicators) {
    if (rank == 0) communicators.scatter = std::make_shared<Watching>(communicators.scatter, inputs, outputs);
  };
  const Plan plan = train_ranks(row, 1, watch)[0].plan;
  size_t next = 0;
  // Backward reduces the groups from the chain's end.
  for (size_t g = plan.groups.size(); g-- > 0;) {
    const WeightGroupPlan& group = plan.groups[g];
    int64_t unsharded = 0, sharded = 0;
    for (const ParameterPlan& parameter : group.parameters) {
      ASSERT_LT(next, inputs.size());
      if (parameter.even(2)) {  // others pass through padded memory, which the plan counts
        EXPECT_EQ(inputs[next].storage_bytes, plan.gradient_slots[group.gradient_slot]) << parameter.spec.name;
        EXPECT_EQ(inputs[next].offset, unsharded) << parameter.spec.name;
        EXPECT_EQ(inputs[next].numel, parameter.unsharded.numel());
        EXPECT_EQ(outputs[next].storage_bytes, group.shard_numel * 4) << "the shards that the optimizer reads";
        EXPECT_EQ(outputs[next].offset, sharded);
      }
      unsharded += parameter.unsharded.numel();
      sharded += parameter.shard.numel();
      ++next;
    }
  }
  EXPECT_EQ(next, inputs.size()) << "each gradient travels once a step, however many microbatches";
}

TEST(GradientBuffers, AreReducedWhereProductsAddedToThemUnderDdp) {
  LayoutRow row = row_named("ddp2");
  row.accumulation = 4;
  std::vector<Seen> reduced, none;
  std::set<const void*> read;  // by the optimizer
  Fault watch;
  watch.communicators = [&](int64_t rank, MeshCommunicators& communicators) {
    if (rank == 0) communicators.replicate = std::make_shared<Watching>(communicators.replicate, reduced, none);
  };
  watch.reduced_gradient = [&](int64_t rank, Parameter& parameter) {
    if (rank == 0) read.insert(parameter.gradient_shard.storage().data());
  };
  const Plan plan = train_ranks(row, 1, watch)[0].plan;
  std::set<const void*> sent;
  for (const Seen& seen : reduced) sent.insert(seen.storage);
  EXPECT_EQ(reduced.size(), plan.groups.size()) << "a block a group, once a step";
  EXPECT_EQ(sent, read);
}

}  // namespace
}  // namespace titan
