// Products of the mock GPU: counted by shape and type, with the demands that cuBLAS makes of float8 operands.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "gradients.h"
#include "ledger.h"
#include "stream.h"

using namespace mock_cuda;  // NOLINT: most of the file is cuBLAS's own interface

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};
Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t leading;
};
struct Description {
  cublasComputeType_t compute;
  std::map<int, uint64_t> attributes;
};

std::string name(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return "fp32";
    case CUDA_R_64F:
      return "fp64";
    case CUDA_R_16F:
      return "fp16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    default:
      return "type " + std::to_string(static_cast<int>(type));
  }
}

bool is_float8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

/// Of a product's result, where it is one matrix.
struct Place {
  void* memory = nullptr;
  int64_t leading = 0;
};

void product(cudaStream_t stream, cudaDataType a, cudaDataType b, cudaDataType c, int64_t m, int64_t n, int64_t k,
             int64_t batch, bool adds, Place result = {}) {
  const std::string what = name(a) + " x " + name(b) + (adds ? " added to " : " to ") + name(c) + ", " +
                           std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) +
                           (batch > 1 ? ", " + std::to_string(batch) + " of them" : "");
  Ledger::of_process().add(is_capturing(stream) ? "recorded_products" : "products", what, 2 * m * n * k * batch);
  const bool gradient = result.memory && a == CUDA_R_16BF && b == CUDA_R_16BF && c == CUDA_R_32F;
  enqueue(stream, {"product " + what, gradient ? filling(result.memory, m, n, result.leading) : nullptr});
}

/// How the partial sums of a product of bf16 that is split along K may be added up.
void note_reduction(cudaDataType a, bool in_any_type) {
  if (a == CUDA_R_16BF) Ledger::of_process().add("bf16 reductions", in_any_type ? "in any type" : "in fp32");
}

bool nonzero(const void* beta, cublasComputeType_t compute) {
  if (!beta) return false;
  if (compute == CUBLAS_COMPUTE_64F) return *static_cast<const double*>(beta) != 0;
  return *static_cast<const float*>(beta) != 0;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  of(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = of(handle).math;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  of(handle).math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = of(handle).pointers;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  of(handle).pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                            const void*, const void*, cudaDataType a, int, const void*, cudaDataType b, int,
                            const void* beta, void* result, cudaDataType c, int leading, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  note_reduction(a, !(of(handle).math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  product(of(handle).stream, a, b, c, m, n, k, 1, nonzero(beta, compute), {result, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n,
                                          int k, const void*, const void*, cudaDataType a, int, long long int,
                                          const void*, cudaDataType b, int, long long int, const void* beta, void*,
                                          cudaDataType c, int, long long int, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  note_reduction(a, !(of(handle).math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  product(of(handle).stream, a, b, c, m, n, k, batch, nonzero(beta, compute));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                              const float*, const float*, int, const float*, int, const float* beta, float*, int) {
  product(of(handle).stream, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, m, n, k, 1, *beta != 0);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                              const double*, const double*, int, const double*, int, const double* beta, double*, int) {
  product(of(handle).stream, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, m, n, k, 1, *beta != 0);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n,
                                         int k, const float*, const float*, int, long long int, const float*, int,
                                         long long int, const float* beta, float*, int, long long int, int batch) {
  product(of(handle).stream, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, m, n, k, batch, *beta != 0);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, {}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  uint64_t kept = 0;
  std::memcpy(&kept, value, bytes < sizeof kept ? bytes : sizeof kept);
  reinterpret_cast<Description*>(description)->attributes[which] = kept;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void*,
                                                size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<uint32_t*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void* value,
                                                    size_t bytes) {
  if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) std::memcpy(preference, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  const auto& a = *reinterpret_cast<Layout*>(first);
  const auto& b = *reinterpret_cast<Layout*>(second);
  auto& attributes = reinterpret_cast<Description*>(description)->attributes;
  *count = 0;
  note_reduction(a.type, *reinterpret_cast<uint32_t*>(preference) & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  if (is_float8(a.type) || is_float8(b.type)) {  // Hopper: both along k, and whole 16 bytes
    const bool turned = attributes[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T &&
                        attributes[CUBLASLT_MATMUL_DESC_TRANSB] == CUBLAS_OP_N;
    const bool even = a.rows % 16 == 0 && a.columns % 16 == 0 && b.rows % 16 == 0 && b.columns % 16 == 0;
    const bool mixed = a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2;
    if (!turned || !even || mixed) {
      Ledger::of_process().trouble("a float8 product that cuBLAS refuses on Hopper: " + name(a.type) + " x " +
                                   name(b.type) + ", " + std::to_string(a.rows) + " x " + std::to_string(a.columns) +
                                   " and " + std::to_string(b.rows) + " x " + std::to_string(b.columns));
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  std::memset(&results[0], 0, sizeof results[0]);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*, const void*,
                              cublasLtMatrixLayout_t first, const void*, cublasLtMatrixLayout_t second,
                              const void* beta, const void*, cublasLtMatrixLayout_t, void* memory,
                              cublasLtMatrixLayout_t result, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  const auto& a = *reinterpret_cast<Layout*>(first);
  const auto& b = *reinterpret_cast<Layout*>(second);
  const auto& d = *reinterpret_cast<Layout*>(result);
  auto& it = *reinterpret_cast<Description*>(description);
  const bool turned = it.attributes[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T;
  product(stream, a.type, b.type, d.type, static_cast<int64_t>(d.rows), static_cast<int64_t>(d.columns),
          static_cast<int64_t>(turned ? a.rows : a.columns), 1, nonzero(beta, it.compute), {memory, d.leading});
  return CUBLAS_STATUS_SUCCESS;
}
}
