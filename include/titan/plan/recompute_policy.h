// Activation checkpointing as data: which results of a unit's forward are kept, which are recomputed in the replay, and
// which the replay does not need. The plan counts with it, and the recorder (ops/recompute.h) follows it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

/// The kind of a result; ordinals count the results of one kind in forward order.
enum class ResultKind : uint8_t { norm, linear, rotary, attention, residual, activation };
inline constexpr size_t kResultKinds = 6;
std::string_view name(ResultKind kind);

/// What happens to a result of a checkpointed unit.
enum class Keep : uint8_t {
  recompute,    // recompute it in the replay
  keep,         // save it in the first run, return it in the replay
  placeholder,  // its value is not needed in the replay: return a zero-stride tensor of its shape
};

class RecomputePolicy {
 public:
  /// No checkpointing: every operation saves what its backward needs.
  static RecomputePolicy none() { return RecomputePolicy(false); }
  /// The unit is run again in backward; only its input is kept until `set` changes that.
  static RecomputePolicy full() { return RecomputePolicy(true); }

  bool checkpointed() const { return checkpointed_; }
  Keep of(ResultKind kind, int ordinal) const {
    return table_[static_cast<size_t>(kind)][static_cast<size_t>(ordinal)];
  }
  RecomputePolicy& set(ResultKind kind, int ordinal, Keep keep);
  bool operator==(const RecomputePolicy&) const = default;

 private:
  // More than the seven matrices of a block, of which a unit has the most; `set` refuses what is beyond. A policy is
  // copied with every context, so the table has no memory of its own.
  static constexpr size_t kOrdinals = 16;
  explicit RecomputePolicy(bool checkpointed) : checkpointed_(checkpointed) {}

  bool checkpointed_;
  std::array<std::array<Keep, kOrdinals>, kResultKinds> table_{};
};

/// The config's recompute selection.
struct RecomputeSelection {
  enum class Mode { none, full, selective_layers, selective_operations, selective_parts };
  Mode mode = Mode::none;
  int64_t every = 1;               // selective_layers: every n-th block
  std::vector<std::string> parts;  // selective_parts: norm, swiglu, ffn, qkv, attention
};

}  // namespace titan
