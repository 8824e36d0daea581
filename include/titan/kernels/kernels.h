// The fused kernels as a table of launchers: the GPU's or, in tests, the same sources compiled for the host. A launcher
// enqueues work on the stream; if that fails it throws std::runtime_error naming the kernel. Arguments must be
// `supported`.
#pragma once

#include "titan/kernels/adam.h"
#include "titan/kernels/bf16_adam.h"
#include "titan/kernels/cross_entropy.h"
#include "titan/kernels/embedding.h"
#include "titan/kernels/exact_sum.h"
#include "titan/kernels/float8_cast.h"
#include "titan/kernels/normal_numbers.h"
#include "titan/kernels/rms_norm.h"
#include "titan/kernels/rotary.h"
#include "titan/kernels/swiglu.h"

namespace titan {

struct Kernels {
  void (*rms_norm_forward)(const RmsNormForward&, CUstream_st*);
  void (*rms_norm_backward)(const RmsNormBackward&, CUstream_st*);
  void (*rotate)(const RotaryTurn&, CUstream_st*);
  void (*swiglu_forward)(const SwigluForward&, CUstream_st*);
  void (*swiglu_backward)(const SwigluBackward&, CUstream_st*);
  void (*embedding_gradient)(const EmbeddingGradient&, CUstream_st*);
  void (*cross_entropy)(const CrossEntropyRows&, CUstream_st*);
  void (*vocabulary_sums)(const VocabularySums&, CUstream_st*);
  void (*vocabulary_gradient)(const VocabularyGradient&, CUstream_st*);
  void (*amax)(const Amax&, CUstream_st*);
  void (*scales_of_amaxes)(const ScalesOfAmaxes&, CUstream_st*);
  void (*float8_cast)(const Float8Cast&, CUstream_st*);
  void (*adam)(const AdamStep&, CUstream_st*);
  void (*bf16_adam)(const Bf16AdamStep&, CUstream_st*);
  void (*round_stochastically)(const RoundStochastically&, CUstream_st*);
  void (*normal_fill)(const NormalFill&, CUstream_st*);
  void (*exact_squares)(const ExactSquares&, CUstream_st*);
  void (*exact_carry)(int64_t* slots, CUstream_st*);
  /// *value = exact_value(slots).
  void (*exact_value)(const int64_t* slots, double* value, CUstream_st*);
};

/// Defined in libtitan_cuda.so; the program calls Cuda::kernels.
const Kernels& gpu_kernels();

}  // namespace titan
