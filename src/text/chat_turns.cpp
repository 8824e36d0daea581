#include "chat_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "titan/text/utf8.h"

namespace titan {

WrittenChat cut(const jinja::Rendered& rendered, const std::vector<bool>& blank) {
  const jinja::TracedText& traced = rendered.output;
  WrittenChat written;
  written.marks = rendered.marks;
  written.read = rendered.read;
  written.extents.resize(blank.size());
  written.turns.resize(blank.size());
  size_t at = 0;
  for (const auto& [end, from] : traced.spans) {
    WrittenChat::Run run{written.text.size(), 0, from};
    written.text.append(traced.text, at, end - at);
    at = end;
    if (from > 0 && from <= blank.size()) {
      if (blank[from - 1] && written.text.ends_with(kStandIn)) written.text.pop_back();
      WrittenChat::Extent& extent = written.extents[from - 1];
      if (!extent.found) extent.first_run = written.runs.size();
      extent.found = true;
      extent.last_run = written.runs.size();
      extent.bytes += written.text.size() - run.begin;
    }
    run.end = written.text.size();
    written.runs.push_back(run);
  }
  return written;
}

void find_turns(const std::vector<jinja::Rendered::Iteration>& iterations, WrittenChat& written) {
  using Run = WrittenChat::Run;
  std::vector<Run> contents;
  for (const Run& run : written.runs) {
    const bool is_content = run.from > 0 && run.from <= written.extents.size();
    if (is_content && run.begin < run.end) contents.push_back(run);
  }
  std::vector<size_t> same_until(contents.size());  // the first content after this one that is another message's
  for (size_t i = contents.size(); i-- > 0;) {
    const bool last = i + 1 == contents.size() || contents[i + 1].from != contents[i].from;
    same_until[i] = last ? i + 1 : same_until[i + 1];
  }
  std::vector<size_t> blank;  // messages, from 1
  for (size_t i = 0; i < written.extents.size(); ++i) {
    if (written.extents[i].found && written.content(i).empty()) blank.push_back(i + 1);
  }
  // The one message without text that is inside an iteration; 0: none or several.
  const auto blank_in = [&](size_t begin, size_t end) -> size_t {
    size_t found = 0;
    for (const size_t each : blank) {
      const size_t at = written.content(each - 1).begin;
      if (at < begin || at >= end) continue;
      if (std::exchange(found, each) != 0) return 0;
    }
    return found;
  };
  for (const auto& [begin, end, message] : iterations) {
    const auto first = std::lower_bound(contents.begin(), contents.end(), begin,
                                        [](const Run& run, size_t at) { return run.end <= at; });
    const auto last =
        std::lower_bound(first, contents.end(), end, [](const Run& run, size_t at) { return run.begin < at; });
    const size_t whose = first != last ? first->from : message != 0 ? message : blank_in(begin, end);
    if (whose == 0 || (message != 0 && message != whose)) continue;  // the latter: it writes another message's content
    if (first != last) {
      const size_t same = same_until[static_cast<size_t>(first - contents.begin())];
      if (same < static_cast<size_t>(last - contents.begin())) continue;
    }
    if (written.extents[whose - 1].found) {
      const WrittenChat::Range all = written.content(whose - 1);
      if (all.begin < begin || all.end > end) continue;
    }
    // An iteration of a loop over the parts of a content is inside the one over the messages.
    WrittenChat::Range& turn = written.turns[whose - 1];
    if (end - begin > turn.end - turn.begin) turn = {begin, end};
  }
}

namespace {

using Messages = std::vector<ChatMessage>;
using Run = WrittenChat::Run;

bool is_answer(const ChatMessage& message) { return message.role == "assistant"; }
bool is_off(const ChatMessage& message) { return !message.is_label.value_or(true); }

/// The template's own texts in [begin, end).
std::vector<Run> template_runs(const WrittenChat& written, size_t begin, size_t end) {
  if (begin >= end) return {};
  const auto ends_before = [](const Run& run, size_t at) { return run.end <= at; };
  std::vector<Run> found;
  for (auto run = std::lower_bound(written.runs.begin(), written.runs.end(), begin, ends_before);
       run != written.runs.end() && run->begin < end; ++run) {
    if (run->from == 0) found.push_back({std::max(run->begin, begin), std::min(run->end, end), 0});
  }
  return found;
}

/// Where the first `text` of the template's own in [begin, end) ends.
std::optional<size_t> end_of_first(std::string_view text, const WrittenChat& written, size_t begin, size_t end) {
  if (text.empty()) return std::nullopt;
  for (const Run& run : template_runs(written, begin, end)) {
    const size_t at = written.of(run).find(text);
    if (at != std::string_view::npos) return run.begin + at + text.size();
  }
  return std::nullopt;
}

/// Where the turn of message `i` begins: after what a prompt writes. What stands between it and the content, such as
/// the assistant's reasoning, is a part of the turn.
size_t begin_of_turn(size_t i, const Messages& messages, const TurnTexts& texts, const WrittenChat& written) {
  const size_t content = written.content(i).begin;
  const bool is_after = i > 0 && written.extents[i - 1].found;
  const size_t before = is_after ? written.content(i - 1).end : 0;
  if (is_after && messages[i - 1].role == "user") {
    const bool prompted = std::string_view(written.text).substr(before).starts_with(texts.prompt_end);
    if (prompted && before + texts.prompt_end.size() <= content) return before + texts.prompt_end.size();
  }
  const WrittenChat::Range& turn = written.turns[i];
  if (turn.empty() && i > 0 && !is_after) return content;  // the first header may be that of the message before
  return end_of_first(texts.header, written, std::max(turn.begin, before), content).value_or(content);
}

/// Where the turn of message `i` ends: with the special token after the content and what follows it of the record, such
/// as reasoning. A template may end the last turn with another token than those before.
size_t end_of_turn(size_t i, const TurnTexts& texts, const AddedTokenFinder& special, const WrittenChat& written) {
  const size_t content = written.content(i).end;
  const bool follows = written.template_text(written.extents[i].last_run + 1).starts_with(texts.turn_end);
  if (texts.ends_in_token && follows) return content + texts.turn_end.size();
  const size_t stop = written.turns[i].end;
  size_t after = content;
  for (size_t run = written.extents[i].last_run + 1; run < written.runs.size() && written.runs[run].begin < stop;
       ++run) {
    if (written.runs[run].from != 0) after = std::min(written.runs[run].end, stop);
  }
  if (texts.ends_in_token) {
    if (const auto end = end_of_first(texts.turn_end, written, after, stop)) return *end;
  }
  for (const Run& run : template_runs(written, after, stop)) {
    std::vector<AddedTokenFinder::Part> parts;
    special.split(written.of(run), parts);
    for (const AddedTokenFinder::Part& part : parts) {
      if (part.token) return static_cast<size_t>(part.text.data() - written.text.data()) + part.text.size();
    }
  }
  if (texts.ends_in_token) return content;
  if (follows) return content + texts.turn_end.size();
  const bool ends =
      after < stop && std::string_view(written.text).substr(after, stop - after).ends_with(texts.turn_end);
  return ends && !texts.turn_end.empty() ? stop : content;
}

/// The label text of message `i`, whose content is found: of the assistant its turn, of others their content.
WrittenChat::Range label_text(size_t i, const Messages& messages, const TurnTexts& texts,
                              const AddedTokenFinder& special, const WrittenChat& written) {
  if (!is_answer(messages[i])) return written.content(i);
  return {begin_of_turn(i, messages, texts, written), end_of_turn(i, texts, special, written)};
}

constexpr size_t kNobody = SIZE_MAX, kUnclear = SIZE_MAX - 1;

/// Whose text each byte is: a message's index. kUnclear: that of one of two answers, of which one is no label.
std::vector<size_t> owners_of(const Messages& messages, const WrittenChat& written) {
  std::vector<size_t> owners(written.text.size(), kNobody);
  const auto own = [&](size_t begin, size_t end, size_t owner) {
    std::fill(owners.begin() + static_cast<std::ptrdiff_t>(begin), owners.begin() + static_cast<std::ptrdiff_t>(end),
              owner);
  };
  for (size_t i = 0; i < messages.size(); ++i) own(written.turns[i].begin, written.turns[i].end, i);
  for (const Run& run : written.runs) {
    if (run.from > 0 && run.from <= messages.size()) own(run.begin, run.end, run.from - 1);
  }
  // What stands between two messages belongs to the assistant's: marks are for its turns.
  for (size_t begin = 0, end = 0; begin < owners.size(); begin = end) {
    end = begin + 1;
    if (owners[begin] != kNobody) continue;
    while (end < owners.size() && owners[end] == kNobody) ++end;
    const size_t before = begin > 0 ? owners[begin - 1] : kNobody, after = end < owners.size() ? owners[end] : kNobody;
    const bool answered = before != kNobody && is_answer(messages[before]);
    const bool answers = after != kNobody && is_answer(messages[after]);
    const bool both = answered && answers && is_off(messages[before]) != is_off(messages[after]);
    own(begin, end, both ? kUnclear : answered || after == kNobody ? before : after);
  }
  return owners;
}

/// Keeps of a mark what `owners` have that count. False if that is not clear.
bool keep_counted(const jinja::Rendered::Mark& mark, const Messages& messages, const std::vector<size_t>& owners,
                  const WrittenChat& written, std::vector<jinja::Rendered::Mark>& kept) {
  const auto counts = [&](size_t at) { return owners[at] == kNobody || !is_off(messages[owners[at]]); };
  const size_t end = advance_characters(written.text, mark.begin, static_cast<int64_t>(mark.characters));
  for (size_t at = mark.begin, stop = at; at < end; at = stop) {
    size_t length = 0;
    for (; stop < end; ++stop) {
      if (owners[stop] == kUnclear) return false;
      if (counts(stop) != counts(at)) break;
      length += (static_cast<unsigned char>(written.text[stop]) & 0xC0) != 0x80 ? 1 : 0;
    }
    if (counts(at)) kept.push_back({at, length});
  }
  return true;
}

/// Removes what is marked in turns that are no labels. Returns the problem, as mark_labels.
std::string remove_marks(const Messages& messages, WrittenChat& written) {
  const auto off = std::find_if(messages.begin(), messages.end(), is_off);
  if (off == messages.end()) return {};
  const auto is_unlabelled = [](const ChatMessage& message) { return is_answer(message) && is_off(message); };
  const auto is_labelled = [](const ChatMessage& message) { return is_answer(message) && !is_off(message); };
  const bool some_count = std::any_of(messages.begin(), messages.end(), is_labelled);
  const auto is_hidden = [&](size_t i) {
    const bool is_seen = written.extents[i].found && !written.content(i).empty();
    return is_unlabelled(messages[i]) && !is_seen && written.turns[i].empty();
  };
  bool any_hidden = false;
  for (size_t i = 0; i < messages.size(); ++i) any_hidden = any_hidden || is_hidden(i);
  std::vector<jinja::Rendered::Mark> kept;
  std::vector<size_t> owners;  // for marks outside of a loop over the messages
  for (const jinja::Rendered::Mark& mark : written.marks) {
    if (mark.message > 0) {
      if (!is_off(messages[mark.message - 1])) kept.push_back(mark);
      continue;
    }
    if (!some_count) continue;  // whosever it is among the assistant's turns
    if (owners.empty()) owners = owners_of(messages, written);
    if (any_hidden || !keep_counted(mark, messages, owners, written, kept)) {
      const auto of = std::find_if(messages.begin(), messages.end(), is_unlabelled);
      return fmt::format("does not show which marked text is that of message {} (of the assistant), which is no label",
                         1 + ((of == messages.end() ? off : of) - messages.begin()));
    }
  }
  written.marks = std::move(kept);
  return {};
}

}  // namespace

std::string mark_labels(const Messages& messages, const TurnTexts& texts, const AddedTokenFinder& special,
                        bool by_marks, WrittenChat& written) {
  const auto count = [&](size_t begin, size_t end, bool counts) {
    std::fill(written.counts.begin() + static_cast<std::ptrdiff_t>(begin),
              written.counts.begin() + static_cast<std::ptrdiff_t>(end), counts ? uint8_t{1} : uint8_t{0});
  };
  if (by_marks) {
    std::string problem = remove_marks(messages, written);
    if (!problem.empty()) return problem;
    for (const jinja::Rendered::Mark& mark : written.marks) {
      count(mark.begin, advance_characters(written.text, mark.begin, static_cast<int64_t>(mark.characters)), true);
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::optional<bool>& said = messages[i].is_label;
    const bool is_used = by_marks ? said.value_or(false) : said.has_value() || is_answer(messages[i]);
    if (!written.extents[i].found || !is_used) continue;
    const WrittenChat::Range text = label_text(i, messages, texts, special, written);
    count(text.begin, text.end, said.value_or(true));
    if (by_marks) written.added.push_back(text);
  }
  return {};
}

}  // namespace titan
