#include "comparison.h"

#include <cmath>
#include <cstdlib>

#include "support/planned_traffic.h"
#include "titan/base/text.h"
#include "titan/optimize/gradient_norm.h"
#include "titan/plan/plan.h"

namespace titan {
namespace {

double relative(double a, double b) { return a == b ? 0 : std::abs(a - b) / std::abs(b); }

}  // namespace

double gradient_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

LayoutRow row_named(const std::string& name) {
  for (const LayoutRow& row : layout_rows()) {
    if (row.name() == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

int64_t compared_steps(const LayoutRow& row) { return row.muon || std::getenv("TITAN_TEST_FULL") ? 20 : 3; }

const RankResult& reference_of(const LayoutRow& row) {
  LayoutRow single;
  single.tied = row.tied;
  single.unequal_masks = row.unequal_masks;
  single.documents = row.documents;
  single.length = row.length;
  single.compute = row.compute;
  single.keep_fp32 = row.keep_fp32;
  single.global_batch = row.global_batch;
  single.sizes = row.sizes;
  single.frozen = row.frozen;
  single.whole_matrices = row.whole_matrices;
  single.muon = row.muon;
  single.change = row.change;
  single.side_channel = row.side_channel;
  single.experts = row.experts;
  static std::map<std::string, RankResult> known;
  RankResult& result =
      known[fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", single.tied, single.unequal_masks,
                        name(single.compute), join(single.keep_fp32, ","), single.global_batch, single.sizes.dim,
                        single.sizes.n_layers, single.sizes.vocab_size, single.documents, single.length, single.frozen,
                        single.whole_matrices, single.muon, single.side_channel, single.experts)];
  const bool only_gradients = single.compute == ElementType::bfloat16;  // losses have no bound there
  if (result.losses.empty()) result = train_ranks(single, only_gradients ? 1 : compared_steps(single))[0];
  return result;
}

std::string difference(const RankResult& result, const RankResult& reference) {
  for (const auto& [name, gradient] : reference.gradients) {
    if (const double error = gradient_error(result.gradients.at(name), gradient); !(error <= kGradientError)) {
      return fmt::format("gradient of {}: {:.3g}", name, error);
    }
  }
  for (size_t step = 0; step < result.losses.size(); ++step) {
    const double error = relative(result.losses[step], reference.losses[step]);
    if (!(error <= (step == 0 ? kFirstLossError : kLossError))) return fmt::format("loss {}: {:.3g}", step + 1, error);
  }
  for (size_t step = 0; step < result.statistics.size(); ++step) {
    for (size_t i = 0; i < reference.statistics[step].size(); ++i) {
      if (result.statistics[step].at(i) == reference.statistics[step][i]) continue;  // kNoStatistic is infinite
      const double error = relative(result.statistics[step].at(i), reference.statistics[step][i]);
      if (!(error <= kLossError)) return fmt::format("statistic {} of step {}: {:.3g}", i, step + 1, error);
    }
  }
  if (const double error = relative(result.norms.at(0), reference.norms.at(0)); !(error <= kFirstNormError)) {
    return fmt::format("norm 1: {:.3g}", error);
  }
  return {};
}

double norm_of(const std::map<std::string, at::Tensor>& gradients) {
  std::vector<at::Tensor> all;
  for (const auto& [name, gradient] : gradients) all.push_back(gradient.contiguous());
  return std::sqrt(exact_value_of(exact_squares(all, at::kCPU)).item<double>());
}

std::string traffic_difference(const RankResult& result) {
  std::string differences;
  for (const auto& [communicator, counted] : result.traffic) {
    const TrafficTable planned = planned_traffic(result.plan, communicator);
    for (size_t k = 0; k < kCollectives; ++k) {
      const Traffic expected = planned[k];
      if (counted[k] == expected) continue;
      differences +=
          fmt::format("{} {}: {} calls of {} bytes, planned {} of {}\n", communicator, name(static_cast<Collective>(k)),
                      counted[k].calls, counted[k].bytes, expected.calls, expected.bytes);
    }
  }
  for (const CommunicatorTraffic& planned : result.plan.traffic) {
    if (!result.traffic.contains(planned.communicator)) differences += planned.communicator + " was never made\n";
  }
  return differences;
}

std::vector<RankResult> expect_as_one_process(const LayoutRow& row) {
  const RankResult& reference = reference_of(row);
  std::vector<RankResult> ranks = train_ranks(row, compared_steps(row));
  for (size_t rank = 0; rank < ranks.size() && !::testing::Test::HasFailure(); ++rank) {
    EXPECT_EQ(difference(ranks[rank], reference), "") << "rank " << rank;
    EXPECT_EQ(traffic_difference(ranks[rank]), "") << "rank " << rank;
    const std::optional<PipelinePart>& pipeline = ranks[rank].plan.request.pipeline;
    EXPECT_EQ(ranks[rank].most_live, pipeline ? planned_live(*pipeline) : 0) << "activations, rank " << rank;
    EXPECT_EQ(ranks[rank].losses, ranks[0].losses) << "all ranks know the same loss";
    EXPECT_EQ(ranks[rank].statistics, ranks[0].statistics) << "and the same statistics";
    EXPECT_EQ(ranks[rank].norms, ranks[0].norms) << "and the same norm, to the bit";
    EXPECT_EQ(ranks[rank].norms[0], norm_of(ranks[rank].gradients))
        << "that of the whole gradients, however they are cut";
  }
  return ranks;
}

ForwardingCommunicator::ForwardingCommunicator(std::shared_ptr<Communicator> inner)
    : Communicator(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)) {}

Pending ForwardingCommunicator::start_all_gather(Tensors outputs, Tensors inputs) {
  return inner_->all_gather(std::move(outputs), std::move(inputs));
}

Pending ForwardingCommunicator::start_reduce_scatter(Tensors outputs, Tensors inputs) {
  return inner_->reduce_scatter(std::move(outputs), std::move(inputs));
}

Pending ForwardingCommunicator::start_all_reduce(Tensors tensors, Reduction reduction) {
  return inner_->all_reduce(std::move(tensors), reduction);
}

Pending ForwardingCommunicator::start_transfer(std::vector<Message> receives, std::vector<Message> sends) {
  return inner_->transfer(std::move(receives), std::move(sends));
}

}  // namespace titan
