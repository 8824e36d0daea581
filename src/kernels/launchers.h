// The launchers that src/kernels/kernels.cu collects in one table; each .cu file defines its own. Private to
// src/kernels.
#pragma once

#include "device.h"
#include "titan/kernels/kernels.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {

void run(const RmsNormForward& a, CUstream_st* stream);
void run(const RmsNormBackward& a, CUstream_st* stream);
void run(const RotaryTurn& a, CUstream_st* stream);
void run(const SwigluForward& a, CUstream_st* stream);
void run(const SwigluBackward& a, CUstream_st* stream);
void run(const EmbeddingGradient& a, CUstream_st* stream);
void run(const CrossEntropyRows& a, CUstream_st* stream);
void run(const VocabularySums& a, CUstream_st* stream);
void run(const VocabularyGradient& a, CUstream_st* stream);
void run(const Amax& a, CUstream_st* stream);
void run(const ScalesOfAmaxes& a, CUstream_st* stream);
void run(const Float8Cast& a, CUstream_st* stream);
void run(const AdamStep& a, CUstream_st* stream);
void run(const Bf16AdamStep& a, CUstream_st* stream);
void run(const RoundStochastically& a, CUstream_st* stream);
void run(const NormalFill& a, CUstream_st* stream);
void run(const ExactSquares& a, CUstream_st* stream);
void exact_carry_slots(int64_t* slots, CUstream_st* stream);
void exact_value_of_slots(const int64_t* slots, double* value, CUstream_st* stream);

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
