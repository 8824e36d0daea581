// A conversation as a chat template wrote it: which bytes are whose, and which of them are labels. A turn is what one
// iteration of the template's loop over the messages writes; where that is not known, it is found by the texts that the
// template writes around the contents. Owned by data; knows no ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "chat_jinja.h"
#include "titan/text/chat.h"

namespace titan {

struct WrittenChat {
  struct Run {
    size_t begin, end;  // bytes of `text`
    size_t from;        // origin, as in jinja::TracedText
  };
  struct Extent {
    size_t first_run = 0, last_run = 0, bytes = 0;
    bool found = false;
  };
  struct Range {
    size_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
  };

  std::string_view of(const Run& run) const { return std::string_view(text).substr(run.begin, run.end - run.begin); }
  /// The template's own text in run `i`; empty if the run is a message's.
  std::string_view template_text(size_t i) const {
    return i < runs.size() && runs[i].from == 0 ? of(runs[i]) : std::string_view();
  }
  /// From the first to the last byte of a message's content, which must be found.
  Range content(size_t message) const {
    return {runs[extents[message].first_run].begin, runs[extents[message].last_run].end};
  }

  std::string text = {};
  std::vector<Run> runs = {};
  std::vector<Extent> extents = {};  // per message
  std::vector<Range> turns = {};     // per message: what was written for it and for no other; empty: not known
  std::vector<uint8_t> counts = {};  // label mask, per byte
  std::vector<jinja::Rendered::Mark> marks = {};
  std::vector<Range> added = {};  // what counts beside the marks
  std::vector<std::vector<std::string>> read = {};
  std::string problem = {};
};

/// Added to a message without text, whose place in what a template writes cannot be seen otherwise. A control
/// character: templates strip white space, and compare texts with words.
inline constexpr char kStandIn = '\1';

/// Splits the text into runs of one origin. Removes kStandIn, the extra character in the content of `blank` messages.
WrittenChat cut(const jinja::Rendered& rendered, const std::vector<bool>& blank);

/// Finds the turns of the messages whose contents have been found. `iterations`: of the same text.
void find_turns(const std::vector<jinja::Rendered::Iteration>& iterations, WrittenChat& written);

/// What a template writes around the content of an answer.
struct TurnTexts {
  std::string prompt_end = {};  // what a prompt writes after the user's content
  std::string header = {};      // the end of it that is written for the prompt alone; empty: not known
  std::string turn_end = {};    // label text after the content of the assistant
  bool ends_in_token = false;   // turn_end's last text is a special token
};

/// Sets the label mask of the bytes, and removes the marks in turns that are no labels. `by_marks`: marks decide which
/// bytes count. Returns an empty text, or what the template does that leaves this undecided.
std::string mark_labels(const std::vector<ChatMessage>& messages, const TurnTexts& texts,
                        const AddedTokenFinder& special, bool by_marks, WrittenChat& written);

}  // namespace titan
