// Names of the folders beside each other under the folder of all checkpoints. Only checkpoints have "step-N" in theirs,
// because other programs search for that.
#pragma once

#include <string_view>

namespace titan {

inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kSavingPrefix = "saving-";
inline constexpr std::string_view kDeletingPrefix = "deleting-";
inline constexpr std::string_view kDamagedPrefix = "damaged-";
inline constexpr std::string_view kReplacedPrefix = "replaced-";

}  // namespace titan
