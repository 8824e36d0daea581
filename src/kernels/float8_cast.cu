#include "titan/kernels/float8_cast.h"

#include <math.h>

#include "block.h"
#include "launchers.h"
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// A tile of 64 × 64 has a 4 × 4 square for each thread (float8_cast_kernel). Kernels that find an amax work with any
// number of whole warps.
constexpr int kThreads = 256;
constexpr int kPacksEach = 8;  // packs per thread, so that few blocks contend for the amax slot

// ---- amax

template <class T, int kWidth>
__device__ __forceinline__ uint32_t largest_of(const T* from, uint32_t largest) {
  return larger(largest, load<kWidth>(from));
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) largest_kernel(const T* numbers, int64_t count, uint32_t* slot) {
  uint32_t largest = 0;
#pragma unroll
  for (int piece = 0; piece < kPacksEach; ++piece) {
    const int64_t at = ((static_cast<int64_t>(blockIdx.x) * kPacksEach + piece) * blockDim.x + threadIdx.x) * kWidth;
    if (at < count) largest = largest_of<T, kWidth>(numbers + at, largest);
  }
  raise_amax(largest, slot);
}

// One block per row.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) largest_of_rows_kernel(const T* matrix, int64_t columns, uint32_t* slots) {
  const T* row = matrix + static_cast<int64_t>(blockIdx.x) * columns;
  uint32_t largest = 0;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kWidth; at < columns; at += blockDim.x * kWidth)
    largest = largest_of<T, kWidth>(row + at, largest);
  raise_amax(largest, slots + blockIdx.x);
}

// Longer strips make fewer atomics, but of a matrix of few rows too few blocks for all multiprocessors.
constexpr int kStripRows = 64;

// One thread per column of a strip of rows: adjacent threads read whole lines, and each strip issues one atomic maximum
// per column.
template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_of_columns_kernel(const T* matrix, int64_t rows, int64_t columns, uint32_t* slots) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kStripRows;
  const int64_t last = first + kStripRows < rows ? first + kStripRows : rows;
  uint32_t largest = 0;
  for (int64_t row = first; row < last; ++row) largest = largest_of<T, 1>(matrix + row * columns + column, largest);
  atomicMax(slots + column, largest);
}

// ---- Scales

constexpr double kLeastAmax = 1e-12;  // as in ops/float8.cpp: both give the same bits
constexpr uint32_t kExponentBits = 0x7f800000;

// One thread per element. Division and reciprocal are correctly rounded: products must read the same inverse that host
// arithmetic gives.
__global__ void __launch_bounds__(kThreads) scales_kernel(ScalesOfAmaxes a) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= a.arrays * a.each) return;
  const double amax = load_one(a.largest[at / a.each] + at % a.each);
  const double most = a.format == KernelFloat8::e4m3 ? 448 : 57344;
  auto value = static_cast<float>(most / (amax < kLeastAmax ? kLeastAmax : amax));
  // Clearing the mantissa would turn NaN into infinity.
  if (a.power_of_two && value == value) value = float_of(bits_of(value) & kExponentBits);
  store_one(a.values + at, value);
  store_one(a.inverses + at, 1 / value);
}

// ---- The cast

// Returns two values as the lower and the upper half of the result, since a GPU converts a pair in one instruction.
#ifdef __CUDACC__
template <KernelFloat8 kFormat>
__device__ __forceinline__ uint32_t to_float8(float lower, float upper) {
  return __nv_cvt_float2_to_fp8x2(make_float2(lower, upper), __NV_SATFINITE,
                                  kFormat == KernelFloat8::e4m3 ? __NV_E4M3 : __NV_E5M2);
}
#else
/// Emulates the GPU instruction: saturates and rounds to nearest, ties to even.
template <KernelFloat8 kFormat>
uint8_t to_float8(float value) {
  constexpr int kMantissa = kFormat == KernelFloat8::e4m3 ? 3 : 2;
  constexpr int kBias = kFormat == KernelFloat8::e4m3 ? 7 : 15;
  constexpr float kMost = kFormat == KernelFloat8::e4m3 ? 448 : 57344;
  const uint32_t sign = bits_of(value) >> 31 << 7;
  if (value != value) return static_cast<uint8_t>(sign | 0x7f);
  const float size = fminf(fabsf(value), kMost);
  int exponent = 1 - kBias;  // subnormals share the exponent of the smallest normal number
  if (size >= ldexpf(1, exponent)) exponent = ilogbf(size);
  const auto steps = static_cast<uint32_t>(rintf(ldexpf(size, kMantissa - exponent)));
  // `steps` includes a normal number's implicit leading one, which increments the exponent like a carry.
  return static_cast<uint8_t>(sign | ((static_cast<uint32_t>(exponent + kBias - 1) << kMantissa) + steps));
}
template <KernelFloat8 kFormat>
uint32_t to_float8(float lower, float upper) {
  return to_float8<kFormat>(lower) | uint32_t{to_float8<kFormat>(upper)} << 8;
}
#endif

// Rows and columns of 64 float8 numbers are whole sectors of 32 bytes in both layouts, and 256 squares of 4 × 4.
constexpr int kTile = 64;
constexpr int kCastPack = 8;  // elements: one access of 16 bytes in bf16
constexpr int kTileWords = kTile / 4;
constexpr int kTileStride = kTileWords + 1;  // avoids bank conflicts between columns of words

// Eight values as two words of float8.
template <class T, KernelFloat8 kFormat>
__device__ __forceinline__ Pack<uint32_t, 2> cast_pack(const T* from, const float (&scale)[kCastPack]) {
  Pack<uint32_t, 2> words{{0, 0}};
  constexpr int kWidth = kPackOf<T> < kCastPack ? kPackOf<T> : kCastPack;
#pragma unroll
  for (int part = 0; part < kCastPack; part += kWidth) {
    float values[kWidth];
    unpack(load<kWidth>(from + part), values);
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      const int n = part + i;
      const uint32_t two = to_float8<kFormat>(values[i] * scale[n], values[i + 1] * scale[n + 1]);
      words.at[n / 4] |= two << (n % 4 * 8);
    }
  }
  return words;
}

// A block casts a tile of 64 × 64. Every thread casts two packs of eight and stores them as rows directly and as
// columns through shared memory: there a thread holds a 4 × 4 square, whose columns are words, and sixteen threads
// write 64 adjacent bytes. Memory is read once and each layout is written once.
template <class T, KernelFloat8 kFormat>
__global__ void __launch_bounds__(kThreads) float8_cast_kernel(Float8Cast a) {
  TITAN_SHARED(uint32_t, tile, kTile * kTileStride);
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  float scale[kCastPack];
  if (a.extent == KernelExtent::matrix) {
    const float all = load_shared_word(a.scale);
#pragma unroll
    for (int i = 0; i < kCastPack; ++i) scale[i] = all;
  }
#pragma unroll
  for (int part = 0; part < kTile * kTile / kCastPack / kThreads; ++part) {
    const int pack = part * kThreads + static_cast<int>(threadIdx.x);
    const int row_in_tile = pack / (kTile / kCastPack);
    const int column_in_tile = pack % (kTile / kCastPack) * kCastPack;
    const int64_t row = first_row + row_in_tile;
    const int64_t column = first_column + column_in_tile;
    Pack<uint32_t, 2> words{{0, 0}};
    if (row < a.rows && column < a.columns) {
      if (a.extent == KernelExtent::row) {
        const float own = load_shared_word(a.scale + row);
#pragma unroll
        for (int i = 0; i < kCastPack; ++i) scale[i] = own;
      } else if (a.extent == KernelExtent::column) {
#pragma unroll
        for (int i = 0; i < kCastPack; ++i) scale[i] = load_shared_word(a.scale + column + i);
      }
      const int64_t at = row * a.columns + column;
      words = cast_pack<T, kFormat>(static_cast<const T*>(a.matrix) + at, scale);
      if (a.data != nullptr) store(reinterpret_cast<uint32_t*>(a.data + at), words);
    }
    tile[row_in_tile * kTileStride + column_in_tile / 4] = words.at[0];
    tile[row_in_tile * kTileStride + column_in_tile / 4 + 1] = words.at[1];
  }
  if (a.transposed == nullptr) return;
  __syncthreads();
  const int square_row = static_cast<int>(threadIdx.x) % kTileWords * 4;
  const int square_word = static_cast<int>(threadIdx.x) / kTileWords;
  if (first_row + square_row >= a.rows) return;
  uint32_t square[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) square[i] = tile[(square_row + i) * kTileStride + square_word];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t column = first_column + square_word * 4 + i;
    if (column >= a.columns) continue;
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) word |= (square[j] >> (i * 8) & 0xff) << (j * 8);
    store_one(reinterpret_cast<uint32_t*>(a.transposed + column * a.rows + first_row + square_row), word);
  }
}

template <class T>
void launch_cast(const Float8Cast& a, CUstream_st* stream) {
  const auto kernel = a.format == KernelFloat8::e4m3 ? float8_cast_kernel<T, KernelFloat8::e4m3>
                                                     : float8_cast_kernel<T, KernelFloat8::e5m2>;
  launch("float8_cast", kernel, dim3(blocks_for(a.columns, kTile), blocks_for(a.rows, kTile)), dim3(kThreads), stream,
         a);
}

template <class T, int kWidth>
void launch_largest(const Amax& a, CUstream_st* stream) {
  const T* matrix = static_cast<const T*>(a.matrix);
  if (a.extent == KernelExtent::matrix) {
    const int64_t count = a.rows * a.columns;
    launch("largest", largest_kernel<T, kWidth>, dim3(blocks_for(count, int64_t{kThreads} * kPacksEach * kWidth)),
           dim3(kThreads), stream, matrix, count, a.largest);
  } else if (a.extent == KernelExtent::row) {
    launch("largest_of_rows", largest_of_rows_kernel<T, kWidth>, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads),
           stream, matrix, a.columns, a.largest);
  } else {
    launch("largest_of_columns", largest_of_columns_kernel<T>,
           dim3(blocks_for(a.columns, kThreads), blocks_for(a.rows, kStripRows)), dim3(kThreads), stream, matrix,
           a.rows, a.columns, a.largest);
  }
}

}  // namespace

void run(const Amax& a, CUstream_st* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    const int64_t unit = a.extent == KernelExtent::matrix ? a.rows * a.columns : a.columns;
    in_packs(a.type, unit, {a.matrix}) ? launch_largest<T, kPackOf<T>>(a, stream) : launch_largest<T, 1>(a, stream);
  });
}

void run(const ScalesOfAmaxes& a, CUstream_st* stream) {
  const int64_t count = a.arrays * a.each;
  if (count == 0) return;
  launch("scales", scales_kernel, dim3(blocks_for(count, kThreads)), dim3(count < kWarpSize ? kWarpSize : kThreads),
         stream, a);
}

void run(const Float8Cast& a, CUstream_st* stream) {
  if (a.rows == 0 || a.columns == 0) return;
  with_type(a.type, [&](auto number) { launch_cast<decltype(number)>(a, stream); });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
