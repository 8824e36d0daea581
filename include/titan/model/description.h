// What a model is, before any of it exists: the chain of units with their parameters, sizes and costs. Pure data and
// arithmetic; the plan, the estimate and the parameter table need nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "titan/ops/parameter.h"
#include "titan/ops/recompute.h"

namespace titan {

enum class UnitRole { embedding, block, head };

/// What one microbatch of `samples` × `length` tokens looks like to a cost formula; sizes of elements in bytes.
struct ActivationShape {
  int64_t samples = 1;
  int64_t length = 1;
  int64_t element_size = 4;  // of the compute dtype
  int64_t tensor_ranks = 1;  // ranks that share every matrix: the stream's tokens, heads and hidden features are cut
  /// Parameters of the unit's linear layers that need of an input for their gradients no more than its float8 numbers.
  std::vector<std::string> float8_parameters = {};
  int64_t ring_bytes = 0;  // that attention holds beside its inputs and its output where ranks share every sequence

  int64_t tokens() const { return samples * length; }
};

/// Linear layers that share an input, at a place where the stream meets matrices that ranks share: they gather the
/// stream before their products, or scatter it after.
struct StreamGroup {
  std::vector<std::string> parameters;
  bool reads = true;
  bool replayed = false;  // its products are made twice

  int64_t forwards() const { return replayed ? 2 : 1; }
};

/// How often one microbatch's stream is gathered from and scattered to the ranks that share every matrix, forward,
/// replay and backward together: by linear layers, and by the rest of the unit.
struct StreamExchanges {
  int64_t gathers = 0;
  int64_t scatters = 0;
  std::vector<StreamGroup> groups = {};
};

struct UnitDescription {
  std::string name;
  UnitRole role = UnitRole::block;
  /// Its own parameters in storage order: weights of one fused product are neighbours.
  std::vector<ParameterSpec> parameters;
  /// Parameters of earlier units that it uses too (tied weights).
  std::vector<std::string> borrowed;
  /// Bytes held from its forward to its backward, its input included.
  std::function<int64_t(const ActivationShape&, const RecomputePolicy&)> saved_bytes;
  std::function<StreamExchanges(const RecomputePolicy&)> exchanges = [](const RecomputePolicy&) {
    return StreamExchanges{};
  };
  /// Numbers per token in the keys of its attention, and as many in the values; 0: it has none.
  int64_t key_features = 0;
  /// The most bytes held at any moment of a forward that keeps nothing, input and output included, a head's logits
  /// not. None: nobody knows; what it would keep for its backward is about as much.
  std::function<int64_t(const ActivationShape&)> forward_bytes = nullptr;

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
  int64_t max_sequence = 0;
  bool block_causal = false;  // attention stops at document bounds, positions restart there

  /// Every parameter once; tied weights count once.
  int64_t parameter_count() const;
  int64_t embedding_count() const;
  /// torchtitan's convention: 6·(N − N_embedding) + 12·L·H·d·T; no causal discount, no recompute.
  int64_t flops_per_token(int64_t sequence_length) const;
};

}  // namespace titan
