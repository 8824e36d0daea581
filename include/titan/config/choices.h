// The options whose value is one of a few words, as enumerations with the words of a config: the schema reads and
// writes them by these tables, and every other part compares values.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace titan {

enum class ElementType { float32, bfloat16 };

/// What normalises hidden states. The weights of rmsnorm and fused_rmsnorm are interchangeable.
enum class NormType {
  rmsnorm,        // rounds before the weight and after it
  fused_rmsnorm,  // rounds once, after the weight
  layernorm,
  np_layernorm,  // without weights
};

/// How long weights stay unsharded: until other units need their memory slot, or until the optimizer changes them.
enum class ReshardPolicy {
  standard,  // blocks alternate between two slots (with a pipeline they stay); embedding and head stay
  always,    // blocks alternate; embedding and head share one more slot
  never,     // all stay
};

/// How the positions of a sequence are split over context-parallel ranks.
enum class LoadBalance {
  head_tail,  // 2n chunks; rank r holds chunks r and 2n−1−r, so all ranks have equal work
  none,       // n chunks; rank r holds chunk r, so the last rank has the most work
};

/// How context-parallel ranks exchange keys and values.
enum class Rotation {
  all_gather,  // all ranks' at once
  all_to_all,  // one rank's at a time, passed around the ring
};

/// The granularity of float8 scales, and which operands are cast.
enum class Float8Recipe {
  tensorwise,          // one scale per tensor; output gradients in e5m2
  rowwise,             // one power-of-two scale per row of each operand; gradients in e4m3 too
  rowwise_with_gw_hp,  // rowwise, but weight gradients are products in the compute dtype, and the weight of the
                       // input-gradient product has one scale
};

enum class OptimizerImplementation { for_loop, foreach, fused };

/// Muon steps matrices of blocks, and AdamW everything else.
enum class OptimizerKind { adam, adamw, muon };

/// Which optimizer steps the parameters of a group if optimizer.name is Muon.
enum class GroupUpdate {
  by_kind,  // Muon for matrices of blocks, AdamW for everything else
  adamw,
  muon,
};

/// How Muon's learning rate depends on the shape of a matrix.
enum class MuonRate {
  original,         // × √max(1, rows / columns)
  match_rms_adamw,  // × 0.2·√max(rows, columns): updates as large as AdamW's
};

enum class DecayType { linear, sqrt, cosine };

/// The word of each value, in the order of help.
template <class Choice>
inline constexpr std::array<std::pair<Choice, std::string_view>, 0> kChoiceWords{};
template <>
inline constexpr auto kChoiceWords<ElementType> = std::to_array<std::pair<ElementType, std::string_view>>(
    {{ElementType::float32, "float32"}, {ElementType::bfloat16, "bfloat16"}});
template <>
inline constexpr auto kChoiceWords<NormType> =
    std::to_array<std::pair<NormType, std::string_view>>({{NormType::rmsnorm, "rmsnorm"},
                                                          {NormType::fused_rmsnorm, "fused_rmsnorm"},
                                                          {NormType::layernorm, "layernorm"},
                                                          {NormType::np_layernorm, "np_layernorm"}});
template <>
inline constexpr auto kChoiceWords<OptimizerKind> = std::to_array<std::pair<OptimizerKind, std::string_view>>(
    {{OptimizerKind::adam, "Adam"}, {OptimizerKind::adamw, "AdamW"}, {OptimizerKind::muon, "Muon"}});
template <>
inline constexpr auto kChoiceWords<GroupUpdate> = std::to_array<std::pair<GroupUpdate, std::string_view>>(
    {{GroupUpdate::by_kind, "by_kind"}, {GroupUpdate::adamw, "adamw"}, {GroupUpdate::muon, "muon"}});
template <>
inline constexpr auto kChoiceWords<MuonRate> = std::to_array<std::pair<MuonRate, std::string_view>>(
    {{MuonRate::original, "original"}, {MuonRate::match_rms_adamw, "match_rms_adamw"}});
template <>
inline constexpr auto kChoiceWords<ReshardPolicy> = std::to_array<std::pair<ReshardPolicy, std::string_view>>(
    {{ReshardPolicy::standard, "default"}, {ReshardPolicy::always, "always"}, {ReshardPolicy::never, "never"}});
template <>
inline constexpr auto kChoiceWords<LoadBalance> = std::to_array<std::pair<LoadBalance, std::string_view>>(
    {{LoadBalance::head_tail, "headtail"}, {LoadBalance::none, "none"}});
template <>
inline constexpr auto kChoiceWords<Rotation> = std::to_array<std::pair<Rotation, std::string_view>>(
    {{Rotation::all_gather, "allgather"}, {Rotation::all_to_all, "alltoall"}});
template <>
inline constexpr auto kChoiceWords<Float8Recipe> = std::to_array<std::pair<Float8Recipe, std::string_view>>(
    {{Float8Recipe::tensorwise, "tensorwise"},
     {Float8Recipe::rowwise, "rowwise"},
     {Float8Recipe::rowwise_with_gw_hp, "rowwise_with_gw_hp"}});
template <>
inline constexpr auto kChoiceWords<OptimizerImplementation> =
    std::to_array<std::pair<OptimizerImplementation, std::string_view>>({{OptimizerImplementation::for_loop,
                                                                          "for-loop"},
                                                                         {OptimizerImplementation::foreach, "foreach"},
                                                                         {OptimizerImplementation::fused, "fused"}});
template <>
inline constexpr auto kChoiceWords<DecayType> = std::to_array<std::pair<DecayType, std::string_view>>(
    {{DecayType::linear, "linear"}, {DecayType::sqrt, "sqrt"}, {DecayType::cosine, "cosine"}});

/// The word of a value: "bfloat16".
template <class Choice>
constexpr std::string_view word_of(Choice choice) {
  for (const auto& [value, word] : kChoiceWords<Choice>) {
    if (value == choice) return word;
  }
  return {};
}

/// The value of a word that the schema has checked.
template <class Choice>
constexpr Choice choice_of(std::string_view word) {
  for (const auto& [value, its_word] : kChoiceWords<Choice>) {
    if (its_word == word) return value;
  }
  return kChoiceWords<Choice>.front().first;
}

}  // namespace titan
