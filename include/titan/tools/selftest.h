// titan_train selftest: trains a small model in every layout that the ranks at hand allow, and compares each with the
// same training by one process on the CPU. What a new cluster or a new device runs first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

/// Steps that each row trains: step 2 shows a wrong update, step 3 a moment that the first update left wrong.
inline constexpr int64_t kSelftestSteps = 3;

/// Largest relative errors that a row may have. The default is for fp32 rows, which differ in the order of sums only:
/// below 1e-6 on CPUs.
struct SelftestLimits {
  double loss = 1e-5;       // of every step, and of the gradient norms
  double gradients = 1e-5;  // ‖g − g'‖ / ‖g'‖ of each parameter, in step 1
};

/// A run that is compared with the reference.
struct SelftestRow {
  std::string name;                // "FSDP over 4 ranks"
  std::vector<std::string> words;  // its options beside those of `selftest_words`
  SelftestLimits limits;
};

/// The rows for `ranks` ranks. Layouts compute in fp32, so that an error in one product or collective shows; on top
/// come rows of lower precision: bf16, and float8 if `has_float8`.
std::vector<SelftestRow> selftest_rows(int64_t ranks, bool has_float8);

/// Options of all rows and of the reference, for a corpus of ids `ids`: a Llama 3 model of four blocks, three steps of
/// 2 · `ranks` sequences.
std::vector<std::string> selftest_words(int64_t ranks, const std::filesystem::path& ids);

/// Writes a corpus of pseudo-random ids with its index, which `selftest_words` names. The same on every rank.
void write_selftest_corpus(const std::filesystem::path& ids, int64_t ranks);

/// The errors of a row.
struct SelftestResult {
  std::string name;
  SelftestLimits limits;
  double loss = 0, grad_norm = 0;  // largest relative error over all steps
  double gradients = 0;
  std::string worst_parameter;  // that of `gradients`

  bool passed() const;
};

/// Compares the step dumps below `folder` with those of the reference. Throws Error(storage) if one is missing.
SelftestResult compare_selftest(const SelftestRow& row, const std::filesystem::path& folder,
                                const std::filesystem::path& reference);

/// A line of the report: the verdict, the row and its errors.
std::string selftest_line(const SelftestResult& result);

/// The last line: "selftest passed: 12 of 12 rows on 4 ranks (Intel Xeon)", or how many of the rows failed.
std::string selftest_verdict(std::span<const SelftestResult> results, int64_t ranks, const std::string& device,
                             bool on_gpu = false);

}  // namespace titan
