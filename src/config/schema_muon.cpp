// Section optimizer.muon.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "titan/config/section.h"

namespace titan::detail {
namespace {

std::optional<std::string> coefficients_problem(const Value& value) {
  const auto& numbers = std::get<std::vector<double>>(value);
  const size_t count = numbers.size();
  if (count != 3) {
    return fmt::format("optimizer.muon.ns_coefficients has {} number{}; it has three: a, b and c", count,
                       count == 1 ? "" : "s");
  }
  // With a = 0 a small singular value becomes its cube or less, and with a few iterations nothing is left of a matrix.
  // The largest published coefficient is 8.3; far larger ones leave what bf16 can hold.
  const bool are_small =
      std::all_of(numbers.begin(), numbers.end(), [](double number) { return std::abs(number) <= 100; });
  if (numbers[0] > 0 && are_small) return std::nullopt;
  return "optimizer.muon.ns_coefficients: a must be above 0, and no coefficient above 100 in size: others do not "
         "orthogonalise";
}

}  // namespace

void describe_muon(Schema& schema) {
  using S = MuonSection;
  Section muon(
      schema, "optimizer.muon", "How Muon updates the matrices of blocks.",
      [](auto& config) -> auto& { return config.optimizer.muon; });
  Condition chosen{"optimizer.name = \"Muon\"",
                   [](const JobConfig& config) { return config.optimizer.name == OptimizerKind::muon; }};
  // 0.02 is the rate of the first publication, for its factor of the shape; coefficients, steps, momentum and eps are
  // the defaults of torch.optim.Muon.
  muon.add("lr", &S::lr, 0.02)
      .own()
      .only_when(chosen)
      .at_least(0)
      .help("peak learning rate of the matrices; with match_rms_adamw one of AdamW's size");
  muon.add("momentum", &S::momentum, 0.95).own().only_when(chosen).at_least(0).below(1).help("decay of the momentum");
  muon.add("nesterov", &S::nesterov, true)
      .own()
      .only_when(chosen)
      .help("orthogonalise a mean of gradient and momentum, not the momentum alone");
  muon.add("ns_coefficients", &S::ns_coefficients, {3.4445, -4.775, 2.0315})
      .own()
      .only_when(chosen)
      .rule("three numbers", coefficients_problem)
      .help("a, b and c of the Newton–Schulz iteration X ← aX + (bA + cA²)X with A = XXᵀ");
  // torch.optim.Muon refuses 100 and more, too. So many iterations cost more than the model's own products.
  muon.add("ns_steps", &S::ns_steps, 5)
      .own()
      .only_when(chosen)
      .at_least(1)
      .below(100)
      .help("iterations for each matrix");
  muon.add("eps", &S::eps, 1e-7)
      .own()
      .only_when(chosen)
      .at_least(1e-37)
      .below(1)
      .help("smallest norm that a matrix is divided by before the iteration");
  muon.add("adjust_lr_fn", &S::adjust_lr_fn, MuonRate::original)
      .own()
      .only_when(chosen)
      .help(
          "factor on lr by shape: √max(1, rows/columns), or 0.2·√max(rows, columns), whose updates are as large as "
          "AdamW's");
  muon.add("dtype", &S::dtype, ElementType::bfloat16)
      .own()
      .only_when(chosen)
      .help("dtype of the iteration and of matrices sent between ranks");
  muon.add("singular_value_freq", &S::singular_value_freq, 0)
      .own()
      .only_when(chosen)
      .at_least(0)
      .help("every how many steps the largest singular value of one matrix's update is measured; 0: never");
}

}  // namespace titan::detail
