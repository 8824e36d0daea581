// What stands below the lines of a terminal while a run goes on: where it is, how fast, how long yet.
#pragma once

#include <cstddef>
#include <string>

#include "titan/report/step_report.h"

namespace titan {

/// One line of at most `width` ASCII characters; fields that do not fit are left out, the least important first.
std::string status_line(const StepReport& report, size_t width);

}  // namespace titan
