// Comparing a run on several ranks with that of a single process: what the tests of layouts share.
#pragma once

#include <string>

#include "ranks.h"

namespace titan {

/// Bounds of the parity matrix, in fp32.
inline constexpr double kGradientError = 1e-5;  // of each parameter after step 1, by norm
inline constexpr double kFirstLossError = 1e-6;
inline constexpr double kLossError = 1e-5;       // of every later step
inline constexpr double kFirstNormError = 1e-6;  // later norms are those of weights that rounding has moved apart

/// |a − b| / |b|, in fp64.
double gradient_error(const at::Tensor& a, const at::Tensor& b);

/// The row of layouts.tsv of that name; a failure when there is none.
LayoutRow row_named(const std::string& name);

/// How many steps a row is followed: the gradients of the first step are the proof, and later steps show what a step
/// leaves behind. 20 steps with TITAN_TEST_FULL, else 3. A row that Muon steps is always followed for 20, because its
/// iteration multiplies differences between gradients.
int64_t compared_steps(const LayoutRow& row = {});

/// The single process that a row is held against, in fp32 as many steps, in bf16 one; run once for each model, dtype,
/// mask, length, model and batch.
const RankResult& reference_of(const LayoutRow& row);

/// The first way in which a rank's result differs from the single process by more than the bounds; empty when none.
std::string difference(const RankResult& result, const RankResult& reference);

/// Trains the row on its ranks and expects of every one: the single process's numbers, the plan's traffic, and the same
/// loss and norm, to the bit, on all. What the ranks saw, for more.
std::vector<RankResult> expect_as_one_process(const LayoutRow& row);

/// Passes everything on: the base of communicators that break something.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<Communicator> inner);
  std::string_view transport() const override { return inner_->transport(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }

 protected:
  Pending start_all_gather(Tensors outputs, Tensors inputs) override;
  Pending start_reduce_scatter(Tensors outputs, Tensors inputs) override;
  Pending start_all_reduce(Tensors tensors, Reduction reduction) override;
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override;

 private:
  std::shared_ptr<Communicator> inner_;
};

/// The exact norm of these gradients, as one process has it: no sum over ranks, nothing counted twice.
double norm_of(const std::map<std::string, at::Tensor>& gradients);

/// Where counted traffic is not what the plan says; empty when it is everywhere.
std::string traffic_difference(const RankResult& result);

}  // namespace titan
