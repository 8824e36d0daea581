#include "src/data/stories.h"

#include <set>
#include <sstream>

#include "src/data/story_plots.h"
#include "src/data/story_template.h"
#include "src/data/story_words.h"
#include "tests/data/fixtures.h"

namespace titan {
namespace {

TEST(StoryTemplate, VerbsFollowTheTense) {
  for (auto [verb, past, present] : {std::tuple{"walk", "walked", "walks"},
                                     {"go", "went", "goes"},
                                     {"carry", "carried", "carries"},
                                     {"be", "was", "is"},
                                     {"have", "had", "has"},
                                     {"play", "played", "plays"},
                                     {"smile", "smiled", "smiles"},
                                     {"stop", "stopped", "stops"},
                                     {"watch", "watched", "watches"}}) {
    EXPECT_EQ(inflect(verb, Tense::past, false), past);
    EXPECT_EQ(inflect(verb, Tense::present, false), present);
  }
  EXPECT_EQ(inflect("be", Tense::past, true), "were");
  EXPECT_EQ(inflect("be", Tense::present, true), "are");
  EXPECT_EQ(inflect("go", Tense::present, true), "go");
}

TEST(StoryTemplate, SlotsTakeArticlesAndCapitals) {
  PhiloxSequence random(1);
  StoryTemplate story(random, Tense::past);
  story.set("thing", "apple");
  story.set("trait", "honest");
  story.set("who", "{trait} cat");
  EXPECT_EQ(story.fill("{A:thing} and {a:who} <see+> {Thing}."), "An apple and an honest cat saw Apple.");
}

TEST(StoryTemplate, OneOfTheAlternativesIsTakenAndAllAreTakenSometimes) {
  PhiloxSequence random(1);
  StoryTemplate story(random, Tense::past);
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) seen.insert(story.fill("a[ b[ c| d]|]."));
  EXPECT_EQ(seen, (std::set<std::string>{"a.", "a b c.", "a b d."}));
}

TEST(Stories, AreAPureFunctionOfSeedAndIndex) {
  EXPECT_EQ(write_story(7, 123), write_story(7, 123));
  EXPECT_NE(write_story(7, 123), write_story(7, 124));
  EXPECT_NE(write_story(7, 123), write_story(8, 123));
}

TEST(Stories, HardlyEverRepeat) {
  std::set<std::string> seen;
  for (uint64_t i = 0; i < 2000; ++i) seen.insert(write_story(0, i));
  EXPECT_EQ(seen.size(), 2000u);
}

TEST(Stories, AreCleanTextOfASensibleLength) {
  for (uint64_t i = 0; i < 2000; ++i) {
    std::string story = write_story(3, i);
    EXPECT_EQ(story.find_first_of("{}[]<>|"), std::string::npos) << story;
    EXPECT_EQ(story.find("  "), std::string::npos) << story;
    EXPECT_TRUE(story.ends_with(".\n") || story.ends_with("\"\n")) << story;
    std::istringstream words(story);
    auto count = std::distance(std::istream_iterator<std::string>(words), {});
    EXPECT_GE(count, 100) << story;
    EXPECT_LE(count, 400) << story;
  }
}

TEST(Stories, EverySentenceBeginsWithACapital) {
  for (uint64_t i = 0; i < 2000; ++i) {
    std::string story = write_story(4, i);
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(story[0]))) << story;
    for (size_t at = 0; at + 2 < story.size(); ++at) {
      bool ends = story[at] == '.' && story[at + 1] == ' ';
      char next = story[at + 2] == '"' ? story[at + 3] : story[at + 2];
      if (!ends) continue;
      EXPECT_TRUE(std::isupper(static_cast<unsigned char>(next))) << story.substr(at);
    }
  }
}

TEST(Stories, KeepToTheirTwoNamesAndOneOfThemComesBackInTheEnd) {
  std::set<std::string_view> names(story_girl_names().begin(), story_girl_names().end());
  names.insert(story_boy_names().begin(), story_boy_names().end());
  for (uint64_t i = 0; i < 500; ++i) {
    std::string story = write_story(5, i);
    std::map<std::string, size_t> last_seen;
    std::string word;
    for (size_t at = 0; at < story.size(); ++at) {
      if (std::isalpha(static_cast<unsigned char>(story[at]))) {
        word += story[at];
      } else {
        if (names.contains(word)) last_seen[word] = at;
        word.clear();
      }
    }
    EXPECT_EQ(last_seen.size(), 2u) << story;
    size_t latest = 0;
    for (const auto& [name, at] : last_seen) latest = std::max(latest, at);
    EXPECT_GT(latest * 10, story.size() * 7) << story;
  }
}

TEST(Stories, EveryPlotIsTold) {
  // A phrase of each plot that no other has.
  const char* phrases[] = {"I had it ",
                           "carried the basket home",
                           "I was unkind",
                           "Please take this to",
                           "I was afraid, and I did it",
                           "Perhaps the seeds are asleep",
                           "has not eaten|had not eaten",
                           "I can only work at night",
                           "one, two, three, and at last",
                           "And a good story"};
  ASSERT_EQ(std::size(phrases), story_plots().size());
  std::string all;
  for (uint64_t i = 0; i < 300; ++i) all += write_story(6, i);
  for (std::string phrase : phrases) {
    if (phrase.find('|') != phrase.npos) phrase = phrase.substr(phrase.find('|') + 1);
    EXPECT_PRED_FORMAT2(test::contains, all, phrase);
  }
}

TEST(StorySource, TrainingNeverEndsAndValidationIsFiniteAndDifferent) {
  StorySource training(1), validation(1, true);
  Document document;
  std::set<std::string> held_out;
  while (validation.next(document)) held_out.insert(document.text);
  EXPECT_EQ(held_out.size(), static_cast<size_t>(StorySource::kValidationStories));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(training.next(document));
    EXPECT_FALSE(held_out.contains(document.text));
  }
  EXPECT_NE(training.fingerprint(), validation.fingerprint());
  EXPECT_NE(training.fingerprint(), StorySource(2).fingerprint());
}

TEST(StorySource, ContinuesFromAPosition) {
  StorySource source(9);
  Document document, again;
  for (int i = 0; i < 10; ++i) source.next(document);
  source.seek(document.start);
  source.next(again);
  EXPECT_EQ(again.text, document.text);
  EXPECT_EQ(again.text, write_story(9, 9));
}

}  // namespace
}  // namespace titan
