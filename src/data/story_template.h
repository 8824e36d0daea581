// A small template language for sentences, and the verbs that go with it. Knows no stories, only how to fill a
// template:
//   {hero} {Hero}   the value of a slot; a capital letter asks for one
//   {a:object}      the value with "a" or "an" before it ({A:object} at the start of a sentence)
//   [one|two|]      one of these at random; may be nested; an empty one leaves it out
//   <walk> <walk+>  the verb in the story's tense, third person singular or plural
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "titan/base/philox.h"

namespace titan {

enum class Tense { past, present };

/// "go" → "went" or "goes"; plural: "went" or "go".
std::string inflect(std::string_view verb, Tense tense, bool plural);

class StoryTemplate {
 public:
  StoryTemplate(PhiloxSequence& random, Tense tense) : random_(random), tense_(tense) {}

  void set(std::string slot, std::string value) { slots_[std::move(slot)] = std::move(value); }

  /// Fills the template. Slot values may hold templates themselves.
  std::string fill(std::string_view text);

 private:
  std::string choose(std::string_view alternatives);
  std::string slot_value(std::string_view name);

  PhiloxSequence& random_;
  Tense tense_;
  std::map<std::string, std::string, std::less<>> slots_;
};

}  // namespace titan
