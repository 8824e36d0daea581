#include "degree_checks.h"

#include <algorithm>

#include "titan/base/text.h"
#include "titan/ops/context_parallel.h"
#include "titan/train/job.h"

namespace titan {
namespace {

/// Degrees above this are not named.
constexpr int64_t kMostNamed = 256;

class DegreeCheck {
 public:
  DegreeCheck(const ModelDescription* model, const JobConfig& config, const Origins& origins)
      : model_(model), config_(config), origins_(origins) {}

  std::vector<Problem> run() {
    check_heads();
    check_length("training.seq_len", config_.training.seq_len);
    // A length that follows training's is wrong with that one.
    const ValidationSection& validation = config_.validation;
    const bool follows = !origins_.is_set("validation.seq_len") && validation.seq_len == config_.training.seq_len;
    if (validation.enable && !follows) check_length("validation.seq_len", validation.seq_len);
    return std::move(problems_);
  }

 private:
  /// What keeps `degree` ranks from sharing every matrix of a block; empty when nothing does.
  std::string obstacle(int64_t degree) const;
  /// The parts of equal length that a sequence is cut into.
  int64_t parts(int64_t tensor, int64_t context) const { return tensor * SequenceSplit{context, balance_}.chunks(); }
  bool divide_lengths(int64_t tensor, int64_t context) const;
  std::string tensor_degrees(int64_t context) const;
  std::string context_degrees(int64_t tensor) const;
  /// Degrees under which the sequences stay as long as they are.
  std::string other_degrees() const;
  void check_heads();
  void check_length(const char* key, int64_t length);

  const ModelDescription* model_;
  const JobConfig& config_;
  const Origins& origins_;
  int64_t tensor_ = config_.parallelism.tensor_parallel_degree;
  int64_t context_ = config_.parallelism.context_parallel_degree;
  LoadBalance balance_ = make_sequence_share(config_, {}).split.balance;
  std::vector<Problem> problems_;
};

std::string DegreeCheck::obstacle(int64_t degree) const {
  if (!model_) return {};
  if (model_->heads % degree != 0) return fmt::format("{} heads", model_->heads);
  if (model_->kv_heads % degree != 0) return fmt::format("{} heads of keys and values", model_->kv_heads);
  for (const UnitDescription& unit : model_->units) {
    if (unit.role != UnitRole::block) continue;
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!parameter.tensor_parallel_dimension) continue;
      const int64_t size = parameter.shape[static_cast<size_t>(*parameter.tensor_parallel_dimension)];
      if (size % degree != 0) return fmt::format("{} rows or columns of {}", size, parameter.name);
    }
  }
  return {};
}

bool DegreeCheck::divide_lengths(int64_t tensor, int64_t context) const {
  const int64_t divisor = parts(tensor, context);
  const bool validates = config_.validation.enable;
  return config_.training.seq_len % divisor == 0 && (!validates || config_.validation.seq_len % divisor == 0);
}

std::string DegreeCheck::tensor_degrees(int64_t context) const {
  std::vector<std::string> degrees;
  for (int64_t degree = 1; degree <= (model_ ? model_->heads : kMostNamed); ++degree) {
    if (obstacle(degree).empty() && divide_lengths(degree, context)) degrees.push_back(std::to_string(degree));
  }
  return join(degrees, ", ");
}

std::string DegreeCheck::context_degrees(int64_t tensor) const {
  std::vector<std::string> degrees;
  for (int64_t degree = 1; degree <= kMostNamed; ++degree) {
    if (divide_lengths(tensor, degree)) degrees.push_back(std::to_string(degree));
  }
  return join(degrees, ", ");
}

std::string DegreeCheck::other_degrees() const {
  std::vector<std::string> ways;
  const auto add = [&](const char* words, const std::string& degrees) {
    if (!degrees.empty()) ways.push_back(words + degrees);
  };
  if (tensor_ > 1) add("tensor_parallel_degree = ", tensor_degrees(context_));
  if (context_ > 1) add("context_parallel_degree = ", context_degrees(tensor_));
  if (ways.empty()) add("tensor_parallel_degree = 1 and context_parallel_degree = ", context_degrees(1));
  return join(ways, ", or ");
}

void DegreeCheck::check_heads() {
  const std::string found = obstacle(tensor_);
  if (found.empty()) return;
  const std::string fitting = tensor_degrees(context_);
  problems_.push_back(origins_.problem("parallelism.tensor_parallel_degree",
                                       fmt::format("parallelism.tensor_parallel_degree = {} does not divide {} of {} "
                                                   "{}",
                                                   tensor_, found, config_.model.name, config_.model.flavor),
                                       "degrees that do: " + (fitting.empty() ? tensor_degrees(1) : fitting)));
}

void DegreeCheck::check_length(const char* key, int64_t length) {
  const int64_t divisor = parts(tensor_, context_);
  if (length % divisor == 0) return;
  const bool is_head_tail = balance_ == LoadBalance::head_tail;
  const char* ranks = context_ == 1  ? ""
                      : is_head_tail ? " × 2 × context_parallel_degree, as head-tail balancing cuts it"
                                     : " × context_parallel_degree";
  const int64_t below = std::max(divisor, length / divisor * divisor), above = (length / divisor + 1) * divisor;
  problems_.push_back(origins_.problem(
      key, fmt::format("{} = {} is no multiple of {} (tensor_parallel_degree{})", key, length, divisor, ranks),
      fmt::format("use {}; or keep the length, with {}",
                  below == above ? std::to_string(below) : fmt::format("{} or {}", below, above), other_degrees())));
}

}  // namespace

std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins) {
  return DegreeCheck(model, config, origins).run();
}

}  // namespace titan
