// Every shape that the issue of schedules asks for, and small helpers that several tests of this folder share.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "titan/base/text.h"
#include "titan/schedule/action.h"
#include "titan/schedule/families.h"

namespace titan {

struct NamedShape {
  const ScheduleFamily* family;
  PipelineShape shape;
  std::string text() const {
    return fmt::format("{} {} ranks {} stages per rank {} microbatches", family->name, shape.ranks,
                       shape.stages_per_rank, shape.microbatches);
  }
};

/// 1 to 8 ranks, 1 to 4 stages per rank, 1 to 32 microbatches, of every schedule: those that are legal, or the others.
inline std::vector<NamedShape> shapes(bool legal) {
  std::vector<NamedShape> all;
  for (const ScheduleFamily& family : schedule_families()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int stages = 1; stages <= 4; ++stages) {
        for (int microbatches = 1; microbatches <= 32; ++microbatches) {
          const PipelineShape shape{ranks, stages, microbatches};
          if (shape_problems(family, shape).empty() == legal) all.push_back({&family, shape});
        }
      }
    }
  }
  return all;
}

inline ScheduleTable table_of(std::string_view text) { return parse_csv(text, "test").table; }

inline ScheduleTable generated(std::string_view name, int ranks, int stages, int microbatches) {
  return generate(*find_schedule(name), {ranks, stages, microbatches});
}

inline std::string listed(const std::vector<std::string>& problems) { return join(problems, "\n"); }

}  // namespace titan
