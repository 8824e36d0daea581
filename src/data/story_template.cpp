#include "story_template.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <vector>

#include "titan/base/error.h"

namespace titan {
namespace {

struct IrregularVerb {
  std::string_view base, past;
};
constexpr IrregularVerb kIrregularVerbs[] = {
    {"be", "was"},        {"beat", "beat"},     {"become", "became"},
    {"beg", "begged"},    {"begin", "began"},   {"blow", "blew"},
    {"break", "broke"},   {"bring", "brought"}, {"build", "built"},
    {"buy", "bought"},    {"catch", "caught"},  {"clap", "clapped"},
    {"come", "came"},     {"dig", "dug"},       {"do", "did"},
    {"draw", "drew"},     {"drink", "drank"},   {"drop", "dropped"},
    {"eat", "ate"},       {"fall", "fell"},     {"feel", "felt"},
    {"find", "found"},    {"fly", "flew"},      {"forget", "forgot"},
    {"get", "got"},       {"give", "gave"},     {"go", "went"},
    {"grow", "grew"},     {"have", "had"},      {"hang", "hung"},
    {"hear", "heard"},    {"hide", "hid"},      {"hold", "held"},
    {"hug", "hugged"},    {"hum", "hummed"},    {"keep", "kept"},
    {"know", "knew"},     {"leave", "left"},    {"lie", "lay"},
    {"lose", "lost"},     {"make", "made"},     {"meet", "met"},
    {"nod", "nodded"},    {"plan", "planned"},  {"put", "put"},
    {"read", "read"},     {"ride", "rode"},     {"ring", "rang"},
    {"rise", "rose"},     {"run", "ran"},       {"say", "said"},
    {"see", "saw"},       {"set", "set"},       {"shake", "shook"},
    {"shine", "shone"},   {"sing", "sang"},     {"sit", "sat"},
    {"sleep", "slept"},   {"spend", "spent"},   {"stand", "stood"},
    {"step", "stepped"},  {"stop", "stopped"},  {"swim", "swam"},
    {"take", "took"},     {"tap", "tapped"},    {"tell", "told"},
    {"think", "thought"}, {"throw", "threw"},   {"understand", "understood"},
    {"wake", "woke"},     {"wear", "wore"},     {"write", "wrote"},
};

bool is_vowel(char c) { return std::string_view("aeiou").find(c) != std::string_view::npos; }

bool ends_in_consonant_y(std::string_view word) {
  return word.size() > 1 && word.back() == 'y' && !is_vowel(word[word.size() - 2]);
}

std::string past_of(std::string_view verb, bool plural) {
  if (verb == "be" && plural) return "were";
  auto at = std::find_if(std::begin(kIrregularVerbs), std::end(kIrregularVerbs),
                         [&](const auto& v) { return v.base == verb; });
  if (at != std::end(kIrregularVerbs)) return std::string(at->past);
  std::string word(verb);
  if (word.back() == 'e') return word + "d";
  if (ends_in_consonant_y(word)) return word.substr(0, word.size() - 1) + "ied";
  return word + "ed";
}

std::string present_of(std::string_view verb, bool plural) {
  if (verb == "be") return plural ? "are" : "is";
  std::string word(verb);
  if (plural) return word;
  if (word == "have") return "has";
  if (ends_in_consonant_y(word)) return word.substr(0, word.size() - 1) + "ies";
  for (std::string_view ending : {"s", "sh", "ch", "x", "o"}) {
    if (word.ends_with(ending)) return word + "es";
  }
  return word + "s";
}

/// Index of the bracket that closes the one at `open`.
size_t closing(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && --depth == 0) return i;
  }
  TITAN_CHECK(false, text);
  return text.npos;
}

std::string capitalised(std::string word) {
  word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
  return word;
}

}  // namespace

std::string inflect(std::string_view verb, Tense tense, bool plural) {
  return tense == Tense::past ? past_of(verb, plural) : present_of(verb, plural);
}

std::string StoryTemplate::choose(std::string_view alternatives) {
  std::vector<std::string_view> choices;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= alternatives.size(); ++i) {
    if (i == alternatives.size() || (alternatives[i] == '|' && depth == 0)) {
      choices.push_back(alternatives.substr(begin, i - begin));
      begin = i + 1;
    } else {
      depth += alternatives[i] == '[' ? 1 : alternatives[i] == ']' ? -1 : 0;
    }
  }
  return fill(choices[random_.below(static_cast<uint32_t>(choices.size()))]);
}

std::string StoryTemplate::slot_value(std::string_view name) {
  bool capital = std::isupper(static_cast<unsigned char>(name[0])) != 0;
  std::string key(name);
  key[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(key[0])));
  bool article = key.starts_with("a:");
  if (article) key.erase(0, 2);
  auto slot = slots_.find(key);
  TITAN_CHECK(slot != slots_.end(), key);
  std::string value = fill(slot->second);
  if (article) value = (is_vowel(value[0]) || value.starts_with("honest") ? "an " : "a ") + value;
  return capital ? capitalised(std::move(value)) : value;
}

std::string StoryTemplate::fill(std::string_view text) {
  std::string filled;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '[') {
      size_t end = closing(text, i);
      filled += choose(text.substr(i + 1, end - i - 1));
      i = end + 1;
    } else if (c == '{') {
      size_t end = text.find('}', i);
      filled += slot_value(text.substr(i + 1, end - i - 1));
      i = end + 1;
    } else if (c == '<') {
      size_t end = text.find('>', i);
      std::string_view verb = text.substr(i + 1, end - i - 1);
      bool plural = verb.ends_with('+');
      if (plural) verb.remove_suffix(1);
      filled += inflect(verb, tense_, plural);
      i = end + 1;
    } else {
      filled += c;
      ++i;
    }
  }
  return filled;
}

}  // namespace titan
