// Describes a model before it is built: the chain of units with their parameters, sizes and costs. Pure data and
// arithmetic; the plan, the estimate and the parameter table need nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "titan/plan/parameter_spec.h"
#include "titan/plan/recompute_policy.h"
#include "titan/plan/unit_trace.h"

namespace titan {

enum class UnitRole { embedding, block, head };

/// The parameters of a unit that are gathered, reduced and stepped together: a weight group.
struct WeightGroupDescription {
  std::string suffix = {};  // "experts": the group is called "layers.3.experts"; empty: like its unit
  /// The axes over which FSDP shards dimension 0, and gathers it before the unit runs: dp_shard, cp, both or none.
  std::vector<MeshAxis> sharded_over = {MeshAxis::dp_shard, MeshAxis::cp};
};

/// A tensor that a unit hands to the next one: [tokens, width] of a microbatch, in the unit's compute dtype.
struct HiddenTensor {
  std::string name;
  int64_t width = 0;
  bool operator==(const HiddenTensor&) const = default;
};
/// Elements that all of them have for one token.
int64_t width_of(std::span<const HiddenTensor> tensors);

/// Stands for a number of an optimizer's last step that does not exist, and is not reported. A sum with −∞ is −∞ again,
/// and unlike NaN it equals itself, on all ranks. No sum of finite numbers or NaN equals it.
inline constexpr double kNoStatistic = -std::numeric_limits<double>::infinity();

/// Numbers that a unit returns beside its hidden states, fp64 [numel]: those of this rank's tokens. A step sums them
/// over microbatches, ranks and all units that give them the same name, as it sums the loss. Numbers of an optimizer's
/// last step are summed with those of the next one; as long as none exist, they are kNoStatistic.
struct StatisticDescription {
  std::string name;
  int64_t numel = 1;
  /// The step minimises its loss plus this times each element. 0: the statistic is only reported.
  double loss_factor = 0;
  // What is reported: sum / divisor, or the root of that; not on the console if there are too many of them.
  double divisor = 1;
  bool is_root = false;
  bool on_console = true;
  bool operator==(const StatisticDescription&) const = default;
};

struct UnitDescription {
  std::string name;
  UnitRole role = UnitRole::block;
  /// Its own parameters in storage order: weights of one fused product are adjacent.
  std::vector<ParameterSpec> parameters;
  /// Parameters of earlier units that it also uses (tied weights).
  std::vector<std::string> borrowed;
  /// Writes the operations of its forward, in order (plan/unit_trace.h).
  std::function<void(UnitTrace&)> trace = {};
  /// What it keeps for backward under `selection` with `tensor_ranks` tensor-parallel ranks: saving a communicated
  /// result may pay off even if its product alone does not. Empty: no checkpointing.
  std::function<RecomputePolicy(const RecomputeSelection& selection, int64_t tensor_ranks)> policy = {};
  /// What ParameterSpec::group names. The split of a group's parameters over dp_replicate, dp_shard and cp is the same.
  std::vector<WeightGroupDescription> groups = {{}};
  /// What its forward returns and the next unit takes, in this order; nothing of a head, which returns the loss.
  std::vector<HiddenTensor> hands_on = {};
  /// What its forward returns after that, in this order.
  std::vector<StatisticDescription> statistics = {};

  int64_t numel() const;
};

struct ModelDescription {
  std::string name;     // the family's name in configs: llama3_1
  std::string flavor;   // 8B
  std::string summary;  // one line: sizes, heads, vocabulary, rotary scaling
  std::vector<UnitDescription> units;
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocabulary = 0;
  bool vocabulary_is_tokenizers = false;  // the flavor has none
  int64_t max_sequence = 0;
  int64_t longest_text = 0;   // tokens, prompt included: the context, or where dynamic rotary scaling begins
  bool block_causal = false;  // attention stops and positions restart at document boundaries

  /// Counts every parameter once, tied weights too.
  int64_t parameter_count() const;
  int64_t embedding_count() const;
  /// torchtitan's convention: 6·(N − N_embedding) + 12·L·H·d·T; no causal discount, no recompute.
  int64_t flops_per_token(int64_t sequence_length) const;
};

}  // namespace titan
