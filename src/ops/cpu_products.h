// CPU matrix product for generation, over raw memory: with few rows, reading the weight takes most of the time.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

// Eight sums and what they are computed from fit in the 16 vector registers of AVX2 (cpu_products.cpp), twice as many
// do not. Generation has a row for each text.
constexpr int64_t kFewRows = 8;

/// y[m][n] = Σ_k x[m][k]·w[n][k] for n in [begin, end), summed in fp32 and rounded once. x [rows, depth], y [rows, all]
/// and w [all, depth] are contiguous, rows ≤ kFewRows. A row's bits depend neither on the other rows nor on the range.
struct FewRows {
  int64_t rows = 0, depth = 0, all = 0;
};
void cpu_product_of_few_rows(float* y, const float* x, const float* w, const FewRows& shape, int64_t begin,
                             int64_t end);
/// The same with x already converted to fp32.
void cpu_product_of_few_rows(BFloat16Bits* y, const float* x, const BFloat16Bits* w, const FewRows& shape,
                             int64_t begin, int64_t end);

}  // namespace titan
