// The words that stories choose from: tables only. Knows nothing of sentences.
// The generator (stories.cpp) draws from them and fills the slots of the plots with what it drew. The generated corpus
// is a function of these tables, and a saved data position names a place in it: a changed word makes another corpus.
#pragma once

#include <span>
#include <string_view>

namespace titan {

struct StoryWeather {
  std::string_view adjective;  ///< "It was a windy autumn day"
  std::string_view scene;      ///< template of a clause: what it does
  std::string_view later;      ///< template of a clause: how it is by the end of the story
};

struct StoryPlace {
  std::string_view name;      ///< with its article: "the old mill"
  std::string_view landmark;  ///< something that stands there
  std::string_view pastime;   ///< what one goes there for: "to watch the wheel turn"
};

struct StoryDish {
  std::string_view dish;        ///< "apple pie"
  std::string_view ingredient;  ///< plural, countable: "apples"
  std::string_view found;       ///< where: "under the old tree"
};

std::span<const std::string_view> story_girl_names();
std::span<const std::string_view> story_boy_names();
std::span<const std::string_view> story_animals();
std::span<const std::string_view> story_traits();
std::span<const std::string_view> story_homes();
std::span<const std::string_view> story_hobbies();
std::span<const std::string_view> story_elders();
std::span<const std::string_view> story_colours();
std::span<const std::string_view> story_objects();
std::span<const std::string_view> story_seasons();
std::span<const std::string_view> story_days();
std::span<const std::string_view> story_flowers();
std::span<const std::string_view> story_fears();
std::span<const StoryWeather> story_weathers();
std::span<const StoryPlace> story_places();
std::span<const StoryDish> story_dishes();

/// "zero" to "twenty-four".
std::string_view number_word(int number);

}  // namespace titan
