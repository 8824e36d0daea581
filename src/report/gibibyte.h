#pragma once

namespace titan {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace titan
