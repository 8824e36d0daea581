#include "stories.h"

#include <fmt/format.h>

#include <array>

#include "story_plots.h"
#include "story_template.h"
#include "story_words.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

/// Raised whenever the same (seed, index) would give another text: a saved stream position is then refused.
constexpr int kGrammarVersion = 1;

constexpr uint64_t kFirstValidationStory = uint64_t{1} << 40;  // training does not come this far

template <class Table>
auto pick(PhiloxSequence& random, const Table& table) {
  return table[random.below(static_cast<uint32_t>(table.size()))];
}

/// Three different rows of a table: a random one and two at random distances from it around the table.
template <class Table>
auto pick_three(PhiloxSequence& random, const Table& table) {
  auto size = static_cast<uint32_t>(table.size());
  uint32_t first = random.below(size);
  uint32_t step = 1 + random.below(size - 1);
  uint32_t other_step = 1 + random.below(size - 2);
  if (other_step >= step) ++other_step;
  return std::array{table[first], table[(first + step) % size], table[(first + other_step) % size]};
}

/// The slots of one character; `prefix` tells the hero's ("") from the friend's ("f").
void set_character(StoryTemplate& story, const std::string& prefix, std::string_view kind, std::string_view trait,
                   bool girl) {
  auto set = [&](const char* slot, std::string_view value) { story.set(prefix + slot, std::string(value)); };
  set("kind", kind);
  set("trait", trait);
  set("he", girl ? "she" : "he");
  set("him", girl ? "her" : "him");
  set("his", girl ? "her" : "his");
}

void set_characters(StoryTemplate& story, PhiloxSequence& random) {
  auto girls = pick_three(random, story_girl_names());
  auto boys = pick_three(random, story_boy_names());
  auto animals = pick_three(random, story_animals());
  auto traits = pick_three(random, story_traits());
  bool about_animals = random.below(3) == 0;
  for (size_t i = 0; i < 2; ++i) {
    bool girl = random.below(2) == 0;
    story.set(i == 0 ? "hero" : "friend", std::string(girl ? girls[i] : boys[i]));
    std::string_view kind = about_animals ? animals[i] : girl ? "girl" : "boy";
    set_character(story, i == 0 ? "" : "f", kind, traits[i], girl);
  }
  story.set("animal", std::string(animals[2]));
  story.set("elder", std::string(pick(random, story_elders())));
}

void set_world(StoryTemplate& story, PhiloxSequence& random) {
  auto places = pick_three(random, story_places());
  const StoryPlace& place = places[0];
  const StoryPlace& other_place = places[1];
  story.set("place", std::string(place.name));
  story.set("landmark", std::string(place.landmark));
  story.set("pastime", std::string(place.pastime));
  story.set("place2", std::string(other_place.name));
  story.set("landmark2", std::string(other_place.landmark));
  StoryWeather weather = pick(random, story_weathers());
  story.set("weather", std::string(weather.adjective));
  story.set("scene", std::string(weather.scene));
  story.set("later", std::string(weather.later));
  story.set("home", std::string(pick(random, story_homes())));
  story.set("hobby", std::string(pick(random, story_hobbies())));
  story.set("season", std::string(pick(random, story_seasons())));
  story.set("day", std::string(pick(random, story_days())));
  story.set("fear", std::string(pick(random, story_fears())));
}

void set_things(StoryTemplate& story, PhiloxSequence& random) {
  std::string colour(pick(random, story_colours()));
  std::string thing(pick(random, story_objects()));
  story.set("colour", colour);
  story.set("thing", thing);
  story.set("treasure", colour + " " + thing);
  story.set("plant", std::string(pick(random, story_flowers())));
  StoryDish dish = pick(random, story_dishes());
  story.set("dish", std::string(dish.dish));
  story.set("ingredient", std::string(dish.ingredient));
  story.set("found", std::string(dish.found));
  int some = 3 + static_cast<int>(random.below(9));
  int more = 2 + static_cast<int>(random.below(9));
  int given = 2 + static_cast<int>(random.below(static_cast<uint32_t>(some + more - 3)));
  auto number = [&](const char* slot, int value) { story.set(slot, std::string(number_word(value))); };
  number("some", some);
  number("more", more);
  number("fewer", some - 1);
  number("all", some + more);
  number("given", given);
  number("left", some + more - given);
}

}  // namespace

std::string write_story(uint64_t seed, uint64_t index) {
  PhiloxSequence random(seed ^ name_key("stories"), index);
  StoryTemplate story(random, random.below(4) == 0 ? Tense::present : Tense::past);
  set_characters(story, random);
  set_world(story, random);
  set_things(story, random);
  const StoryPlot& plot = story_plots()[random.below(static_cast<uint32_t>(story_plots().size()))];
  story.set("lesson", std::string(plot.lesson));

  std::string text = story.fill(pick(random, story_openings()));
  text += story.fill(" [It <be>|All this <happen> on] {a:weather} {season} day, [and|when] {scene}.");
  for (std::string_view paragraph : plot.paragraphs) {
    if (!paragraph.empty()) text += "\n\n" + story.fill(paragraph);
  }
  return text + "\n\n" + story.fill(pick(random, story_endings())) + "\n";
}

bool StorySource::next(Document& document) {
  if (validation_ && next_ >= kValidationStories) return false;
  uint64_t first = validation_ ? kFirstValidationStory : 0;
  document.start = {};
  document.start.document = next_;
  document.text = write_story(seed_, first + static_cast<uint64_t>(next_));
  ++next_;
  ++counters_.documents;
  return true;
}

std::string StorySource::description() const {
  return fmt::format("the embedded story generator (seed {}{})", seed_, validation_ ? ", validation set" : "");
}

uint64_t StorySource::fingerprint() const {
  return name_key(fmt::format("stories {} {} {}", kGrammarVersion, seed_, validation_));
}

}  // namespace titan
