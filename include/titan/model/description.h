// Describes a model before it is built: the chain of units with their parameters, sizes and costs. Pure data and
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

/// One microbatch of `samples` × `length` tokens as input of a cost formula; element sizes in bytes.
struct ActivationShape {
  int64_t samples = 1;
  int64_t length = 1;
  int64_t element_size = 4;  // of the compute dtype
  int64_t tensor_ranks = 1;  // tensor-parallel ranks: they shard the stream's tokens, heads and hidden features
  /// Parameters of the unit's linear layers whose gradients need only the float8 copy of their input.
  std::vector<std::string> float8_parameters = {};
  int64_t ring_bytes = 0;  // held by attention besides its inputs and output, with context parallelism

  int64_t tokens() const { return samples * length; }
};

/// Linear layers that share an input, where the stream meets tensor-parallel matrices: the stream is gathered before
/// their products, or scattered after.
struct StreamGroup {
  std::vector<std::string> parameters;
  bool reads = true;
  bool replayed = false;  // its products run again in the replay

  int64_t forwards() const { return replayed ? 2 : 1; }
};

/// How often one microbatch's stream is gathered and scattered over the tensor-parallel ranks in forward, replay and
/// backward together: by linear layers, and by the rest of the unit.
struct StreamExchanges {
  int64_t gathers = 0;
  int64_t scatters = 0;
  std::vector<StreamGroup> groups = {};
};

struct UnitDescription {
  std::string name;
  UnitRole role = UnitRole::block;
  /// Its own parameters in storage order: weights of one fused product are adjacent.
  std::vector<ParameterSpec> parameters;
  /// Parameters of earlier units that it also uses (tied weights).
  std::vector<std::string> borrowed;
  /// Bytes held from forward to backward, its input included.
  std::function<int64_t(const ActivationShape&, const RecomputePolicy&)> saved_bytes;
  std::function<StreamExchanges(const RecomputePolicy&)> exchanges = [](const RecomputePolicy&) {
    return StreamExchanges{};
  };
  /// Elements per token of attention's keys, equal to those of the values; 0: no attention.
  int64_t key_features = 0;
  /// Peak bytes of a forward that saves nothing, input and output included, the head's logits excluded. Null: unknown;
  /// `saved_bytes` is then a good approximation.
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
  bool block_causal = false;  // attention stops at document boundaries, positions restart there

  /// Counts every parameter once, tied weights too.
  int64_t parameter_count() const;
  int64_t embedding_count() const;
  /// torchtitan's convention: 6·(N − N_embedding) + 12·L·H·d·T; no causal discount, no recompute.
  int64_t flops_per_token(int64_t sequence_length) const;
};

}  // namespace titan
