// The plots of the embedded stories: for each, the paragraphs from its trouble to its turn, as templates.
// Openings and endings, which all plots share, are here too.
#pragma once

#include <span>
#include <string_view>

namespace titan {

struct StoryPlot {
  std::string_view paragraphs[6];  ///< templates; empty ones at the end are left out
  std::string_view lesson;         ///< template of the sentence that sums it up
};

std::span<const StoryPlot> story_plots();
std::span<const std::string_view> story_openings();
std::span<const std::string_view> story_endings();

}  // namespace titan
