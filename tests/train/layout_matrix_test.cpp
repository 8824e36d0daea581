// Tests of the parity matrix itself: what its rows cover, and that it notices what it is there to notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "comparison.h"
#include "support/planned_traffic.h"

namespace titan {
namespace {

using RowSettings = std::map<std::string, std::string>;

/// The modifiers of a row as the words of layouts.tsv.
RowSettings settings_of(const LayoutRow& row) {
  auto word = [](bool on) { return on ? "yes" : "no"; };
  return {{"accumulation", std::to_string(row.accumulation)},
          {"masks", row.unequal_masks ? "unequal" : "even"},
          {"reshard", row.reshard},
          {"offload", word(row.offload)},
          {"recompute", row.recompute},
          {"tied", word(row.tied)},
          {"async_tp", word(row.async_tensor)},
          {"transport", row.sockets ? "sockets" : "memory"}};
}

const std::map<std::string, std::vector<std::string>> kModifiers{
    {"accumulation", {"1", "4"}}, {"masks", {"even", "unequal"}},        {"reshard", {"default", "always", "never"}},
    {"offload", {"no", "yes"}},   {"recompute", {"none", "op", "full"}}, {"tied", {"no", "yes"}},
    {"async_tp", {"no", "yes"}},  {"transport", {"memory", "sockets"}}};

/// Whether a layout distinguishes the settings of a modifier.
bool can_vary(const std::string& modifier, const LayoutRow& layout) {
  if (modifier == "reshard" || modifier == "offload") return layout.shard > 1;
  return modifier != "async_tp" || layout.tensor > 1;
}

/// Every combination of settings of `modifiers` occurs in a row on whose layout each of them means something.
void expect_every_combination(const std::vector<LayoutRow>& rows, const std::vector<std::string>& modifiers,
                              RowSettings chosen = {}) {
  if (chosen.size() == modifiers.size()) {
    const bool occurs = std::any_of(rows.begin(), rows.end(), [&](const LayoutRow& row) {
      const RowSettings settings = settings_of(row);
      return std::all_of(chosen.begin(), chosen.end(), [&](const auto& pair) {
        return settings.at(pair.first) == pair.second && can_vary(pair.first, row);
      });
    });
    EXPECT_TRUE(occurs) << ::testing::PrintToString(chosen);
    return;
  }
  const std::string& next = modifiers[chosen.size()];
  for (const std::string& setting : kModifiers.at(next)) {
    chosen[next] = setting;
    expect_every_combination(rows, modifiers, chosen);
  }
}

TEST(LayoutMatrix, HoldsEveryLayoutPlain) {
  std::set<std::string> names, plain;
  for (const LayoutRow& row : layout_rows()) {
    EXPECT_TRUE(names.insert(row.name()).second) << row.name() << " twice";
    if (row.name() == row.layout) plain.insert(row.layout);
  }
  EXPECT_EQ(plain, (std::set<std::string>{"ddp2", "ddp4", "fsdp2", "fsdp3", "fsdp4", "hsdp2x2", "tp2", "tp4",
                                          "fsdp2xtp2", "hsdp2x2xtp2"}));
}

TEST(LayoutMatrix, HoldsEveryModifierAloneSoThatAFailingRowNamesItsCause) {
  const std::vector<LayoutRow> rows = layout_rows();
  const RowSettings plain = settings_of(LayoutRow{});
  for (const auto& [modifier, settings] : kModifiers) {
    for (size_t i = 1; i < settings.size(); ++i) {
      RowSettings wanted = plain;
      wanted[modifier] = settings[i];
      EXPECT_TRUE(std::any_of(rows.begin(), rows.end(),
                              [&](const LayoutRow& row) { return settings_of(row) == wanted && row.world() == 2; }))
          << modifier << " " << settings[i];
    }
  }
}

TEST(LayoutMatrix, HoldsEveryLayoutWithEverySettingAndEveryPairOfSettings) {
  const std::vector<LayoutRow> rows = layout_rows();
  for (const auto& [modifier, settings] : kModifiers) {
    for (const LayoutRow& layout : rows) {
      if (!can_vary(modifier, layout)) continue;
      std::set<std::string> seen;
      for (const LayoutRow& row : rows) {
        if (row.layout == layout.layout) seen.insert(settings_of(row).at(modifier));
      }
      EXPECT_EQ(seen, std::set<std::string>(settings.begin(), settings.end())) << layout.layout << " " << modifier;
    }
    for (const auto& [other, unused] : kModifiers) {
      if (modifier < other) expect_every_combination(rows, {modifier, other});
    }
  }
}

TEST(LayoutMatrix, HoldsEveryCombinationOfTheThreesThatShareState) {
  const std::vector<LayoutRow> rows = layout_rows();
  expect_every_combination(rows, {"accumulation", "reshard", "recompute"});
  expect_every_combination(rows, {"accumulation", "reshard", "offload"});
  expect_every_combination(rows, {"recompute", "tied", "async_tp"});
}

TEST(LayoutMatrix, NoticesOneRanksGradientScaledByAThousandth) {
  Fault fault;
  fault.reduced_gradient = [](int64_t rank, Parameter& parameter) {
    if (rank == 1) parameter.gradient_shard.mul_(1.001);
  };
  const LayoutRow row = row_named("fsdp2");
  EXPECT_NE(difference(train_ranks(row, 3, fault)[0], reference_of(row)), "");
}

/// Adds one rank's gradients to the others' a thousandth too large.
class Exaggerating : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    for (at::Tensor& input : inputs) input = input * 1.001;
    return ForwardingCommunicator::start_reduce_scatter(outputs, inputs);
  }
};

TEST(LayoutMatrix, NoticesOneRanksShareOfTheGradientScaledByAThousandth) {
  Fault fault;
  fault.communicators = [](int64_t rank, MeshCommunicators& communicators) {
    if (rank == 1) communicators.scatter = std::make_shared<Exaggerating>(communicators.scatter);
  };
  const LayoutRow row = row_named("fsdp2");
  EXPECT_NE(difference(train_ranks(row, 3, fault)[0], reference_of(row)), "");
}

/// Leaves out the small all-reduces, which are those of norm weights.
class Forgetful : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  struct Nothing : PendingCollective {
    void wait() override {}
  };
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    const bool of_norm_weights = tensors[0].dim() == 1 && tensors[0].numel() == 64;
    if (of_norm_weights) return std::make_unique<Nothing>();
    return ForwardingCommunicator::start_all_reduce(tensors, reduction);
  }
};

TEST(LayoutMatrix, NoticesAMissingAllReduceOfNormWeights) {
  Fault fault;
  fault.communicators = [](int64_t, MeshCommunicators& communicators) {
    communicators.tensor = std::make_shared<Forgetful>(communicators.tensor);
  };
  const LayoutRow row = row_named("tp2");
  const std::string found = difference(train_ranks(row, 2, fault)[0], reference_of(row));
  EXPECT_NE(found.find("norm"), std::string::npos) << found;
}

TEST(LayoutMatrix, NoticesANormThatCountsReplicatedWeightsTwice) {
  const LayoutRow row = row_named("tp2");
  RankResult result = train_ranks(row, 1)[0];
  ASSERT_EQ(difference(result, reference_of(row)), "");
  double squares = result.norms[0] * result.norms[0];
  for (const auto& [name, gradient] : result.gradients) {
    if (gradient.dim() == 1) squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  result.norms[0] = std::sqrt(squares);
  EXPECT_NE(difference(result, reference_of(row)), "");
}

/// Leaves out one call of a live communicator, or one message from rank 0 to rank 1, on all ranks alike.
class Skipping : public ForwardingCommunicator {
 public:
  Skipping(std::shared_ptr<Communicator> inner, Collective kind, int64_t number)
      : ForwardingCommunicator(std::move(inner)), kind_(kind), number_(number) {}

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override {
    if (skips(Collective::all_gather)) return nothing(outputs);
    return ForwardingCommunicator::start_all_gather(std::move(outputs), std::move(inputs));
  }
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override {
    if (skips(Collective::reduce_scatter)) return nothing(outputs);
    return ForwardingCommunicator::start_reduce_scatter(std::move(outputs), std::move(inputs));
  }
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override {
    if (skips(Collective::all_reduce)) return nothing({});
    return ForwardingCommunicator::start_all_reduce(std::move(tensors), reduction);
  }
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    Tensors missing;
    std::erase_if(rank() == 0 ? sends : receives, [&](const Message& message) {
      if (!skips(Collective::permute)) return false;
      if (rank() == 1) missing = message.tensors;
      return true;
    });
    if (receives.empty() && sends.empty()) return nothing(missing);
    nothing(missing)->wait();
    return ForwardingCommunicator::start_transfer(std::move(receives), std::move(sends));
  }

 private:
  struct Nothing : PendingCollective {
    void wait() override {}
  };
  bool skips(Collective kind) { return kind == kind_ && seen_++ == number_; }
  static Pending nothing(const Tensors& outputs) {
    for (const at::Tensor& output : outputs) output.zero_();
    return std::make_unique<Nothing>();
  }

  Collective kind_;
  int64_t number_;
  int64_t seen_ = 0;
};

struct SkippedCall {
  const char* layout;
  std::shared_ptr<Communicator> MeshCommunicators::*communicator;
  const char* name;
  Collective kind;
  int64_t pipeline = 1;
};

TEST(LayoutMatrix, NoticesOneCallThatThePlanHasAndTheRunHasNot) {
  const std::vector<SkippedCall> cases{
      {"fsdp2", &MeshCommunicators::gather, communicator_names::kGather, Collective::all_gather},
      {"fsdp3", &MeshCommunicators::scatter, communicator_names::kScatter, Collective::reduce_scatter},
      {"fsdp2", &MeshCommunicators::loss, communicator_names::kLoss, Collective::all_reduce},
      {"fsdp2", &MeshCommunicators::model, communicator_names::kModel, Collective::all_reduce},
      {"ddp4", &MeshCommunicators::replicate, communicator_names::kReplicate, Collective::all_reduce},
      {"hsdp2x2", &MeshCommunicators::replicate, communicator_names::kReplicate, Collective::all_reduce},
      {"tp2", &MeshCommunicators::tensor, communicator_names::kTensor, Collective::all_gather},
      {"tp4", &MeshCommunicators::tensor, communicator_names::kTensor, Collective::reduce_scatter},
      {"fsdp2xtp2", &MeshCommunicators::tensor, communicator_names::kTensor, Collective::all_reduce},
      {"ddp2", &MeshCommunicators::pipeline, communicator_names::kPipeline, Collective::permute, /*pipeline=*/2}};
  for (const SkippedCall& skipped : cases) {
    LayoutRow row = row_named(skipped.layout);
    row.pipeline = skipped.pipeline;
    const Traffic planned =
        planned_traffic(train_ranks(row, 0)[0].plan, skipped.name)[static_cast<size_t>(skipped.kind)];
    // One in the middle of the second step, which is the one that is counted; of messages every second is a receive.
    const int64_t number = skipped.kind == Collective::permute ? row.microbatches + 1 : planned.calls * 3 / 2;
    Fault fault;
    fault.communicators = [&](int64_t, MeshCommunicators& communicators) {
      auto& communicator = communicators.*skipped.communicator;
      communicator = std::make_shared<Skipping>(communicator, skipped.kind, number);
    };
    for (const RankResult& rank : train_ranks(row, 2, fault)) {
      const std::string begin = fmt::format("{} {}: ", skipped.name, name(skipped.kind));
      const std::string found = traffic_difference(rank);
      if (skipped.kind != Collective::permute) {
        const std::string expected = fmt::format("{}{} calls of ", begin, planned.calls - 1);
        EXPECT_TRUE(found.starts_with(expected)) << skipped.layout << ": " << found;
      }
      if (skipped.kind == Collective::permute && rank.plan.request.place.coordinate(MeshAxis::pp) == 1) continue;
      EXPECT_TRUE(found.starts_with(begin)) << skipped.layout << ": " << found;
      EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 1) << "and nothing else: " << found;
      ASSERT_EQ(rank.reported.size(), 1u) << "the trainer says so, too";
      EXPECT_TRUE(rank.reported[0].starts_with(begin)) << rank.reported[0];
    }
  }
}

TEST(LayoutMatrix, NoticesACommunicatorThatThePlanCountsAndTheRunHasNot) {
  RankResult result;
  result.plan = plan_of(row_named("ddp2"), 0);
  EXPECT_NE(traffic_difference(result).find("dp_replicate was never made\n"), std::string::npos);
}

}  // namespace
}  // namespace titan
