// Which optimizer steps which parameter, and what a plan knows of each: PlanRequest::updates and update_of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "titan/config/problem.h"
#include "titan/plan/description.h"
#include "titan/plan/update.h"

namespace titan {

/// Index of each update in update_descriptions if optimizer.name is "Muon". Any other optimizer has only the first.
inline constexpr size_t kAdamUpdate = 0, kMuonUpdate = 1;

std::vector<UpdateDescription> update_descriptions(const OptimizerSection& optimizer);

/// The options of learning rates, for advice to a run that diverges.
std::string rates_to_lower(const OptimizerSection& optimizer);

/// Names of the statistics of Muon's updates. update_rms.KIND is the root mean square of the orthogonalised updates of
/// a kind of matrix ("wq": the last part of its name). The other two are the largest singular value of one update, and
/// the number of that matrix.
inline constexpr const char* kUpdateRms = "update_rms.";
inline constexpr const char* kSingularValue = "update_singular_value";
inline constexpr const char* kMeasuredMatrix = "update_measured_matrix";
std::string kind_of_matrix(const std::string& name);

/// Floating-point operations of the Newton–Schulz iterations of a matrix [rows, columns], computed with full products.
double newton_schulz_operations(int64_t steps, int64_t rows, int64_t columns);

/// How a CPU computes updates of whole matrices. One of up to this many elements is iterated on one thread, and as many
/// at once as there are threads: on two threads the products of the debug model's matrices spend a quarter of the time
/// waiting for each other.
inline constexpr int64_t kSmallMatrix = 1 << 20;
/// Up to so many elements are updated at once: small matrices for eight threads. These matrices and their updates take
/// at most 64 MiB in fp32.
inline constexpr int64_t kElementsAtOnce = 8 * kSmallMatrix;

/// The index of the update that steps a parameter of a unit of this role: Muon's for matrices of blocks, unless a
/// parameter group says otherwise.
std::function<size_t(UnitRole, const ParameterSpec&)> update_choice(const OptimizerSection& optimizer);

/// "Muon steps 42 matrices, AdamW 15 other tensors", of the trained parameters; empty unless optimizer.name is "Muon".
std::string shared_work(const OptimizerSection& optimizer, const ModelDescription& model);

/// Problems of optimizer.name = "Muon" with other options, of coefficients that do not orthogonalise, and of parameter
/// groups that ask Muon for what it does not step; of groups that name an update without Muon.
std::vector<Problem> update_problems(const JobConfig& config, const ModelDescription& model, const Origins& origins);

}  // namespace titan
