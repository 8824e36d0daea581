#include "titan/schedule/action.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/schedule/rules.h"

namespace titan {
namespace {

/// The first kTableWords are words of tables; the others occur only in programs.
constexpr size_t kTableWords = 13;
constexpr std::array<std::pair<ActionKind, std::string_view>, 45> kWords{{
    {ActionKind::forward, "F"},
    {ActionKind::backward, "B"},
    {ActionKind::input_gradient, "I"},
    {ActionKind::weight_gradient, "W"},
    {ActionKind::unshard, "UNSHARD"},
    {ActionKind::reshard, "RESHARD"},
    {ActionKind::reduce_grad, "REDUCE_GRAD"},
    {ActionKind::send_forward, "SEND_F"},
    {ActionKind::receive_forward, "RECV_F"},
    {ActionKind::send_backward, "SEND_B"},
    {ActionKind::receive_backward, "RECV_B"},
    {ActionKind::overlap, "OVERLAP_F_B"},
    {ActionKind::batch, "BATCH"},
    {ActionKind::handoff_forward, "HANDOFF_F"},
    {ActionKind::handoff_backward, "HANDOFF_B"},
    {ActionKind::wait_forward, "WAIT_F"},
    {ActionKind::wait_backward, "WAIT_B"},
    {ActionKind::wait_sends, "WAIT_SENDS"},
    {ActionKind::evaluate, "EVALUATE"},
    {ActionKind::offload, "OFFLOAD"},
    {ActionKind::fetch, "FETCH"},
    {ActionKind::wait_fetch, "WAIT_FETCH"},
    {ActionKind::graph, "GRAPH"},
    {ActionKind::refresh, "REFRESH"},
    {ActionKind::wait_unshard, "WAIT_UNSHARD"},
    {ActionKind::scale, "SCALE"},
    {ActionKind::open_gradient, "OPEN_GRADIENT"},
    {ActionKind::close_gradient, "CLOSE_GRADIENT"},
    {ActionKind::reduce_scatter, "REDUCE_SCATTER"},
    {ActionKind::all_reduce, "ALL_REDUCE"},
    {ActionKind::wait_reduce, "WAIT_REDUCE"},
    {ActionKind::reduce_partial, "REDUCE_PARTIAL"},
    {ActionKind::add_tied, "ADD_TIED"},
    {ActionKind::to_host, "TO_HOST"},
    {ActionKind::wait_host, "WAIT_HOST"},
    {ActionKind::loss_sum, "LOSS_SUM"},
    {ActionKind::squares, "SQUARES"},
    {ActionKind::norm, "NORM"},
    {ActionKind::control, "CONTROL"},
    {ActionKind::before_change, "BEFORE_CHANGE"},
    {ActionKind::collect, "COLLECT"},
    {ActionKind::transform, "TRANSFORM"},
    {ActionKind::wait_transform, "WAIT_TRANSFORM"},
    {ActionKind::step, "STEP"},
    {ActionKind::zero_gradient, "ZERO_GRADIENT"},
}};

/// Five digits are enough for stages and microbatches, and no product of two such numbers overflows.
constexpr size_t kMostDigits = 5;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_merged(ActionKind kind) { return kind == ActionKind::overlap || kind == ActionKind::batch; }

std::optional<ActionKind> find_kind(std::string_view word) {
  for (const auto& [kind, known] : std::span(kWords).first(kTableWords)) {
    if (known == word) return kind;
  }
  return std::nullopt;
}

/// Removes and parses the digits at the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  const auto digits = static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  if (digits == 0 || digits > kMostDigits) return std::nullopt;
  int number = 0;
  std::from_chars(text.data(), text.data() + digits, number);
  text.remove_prefix(digits);
  return number;
}

std::optional<Action> parse_single(std::string_view text) {
  const std::optional<int> stage = take_number(text);
  if (!stage) return std::nullopt;
  const auto letters = static_cast<size_t>(std::find_if(text.begin(), text.end(), is_digit) - text.begin());
  const std::optional<ActionKind> kind = find_kind(text.substr(0, letters));
  if (!kind || is_merged(*kind)) return std::nullopt;
  text.remove_prefix(letters);
  Action action{*kind, *stage};
  if (has_microbatch(*kind)) {
    const std::optional<int> microbatch = take_number(text);
    if (!microbatch) return std::nullopt;
    action.microbatch = *microbatch;
  }
  if (!text.empty()) return std::nullopt;
  return action;
}

std::optional<Action> parse_merged(std::string_view text) {
  const size_t close = text.find(')');
  if (close == std::string_view::npos) return std::nullopt;
  const std::optional<ActionKind> kind = find_kind(text.substr(close + 1));
  if (!kind || !is_merged(*kind)) return std::nullopt;
  Action action{*kind};
  for (const std::string& word : split(text.substr(1, close - 1), ';')) {
    std::optional<Action> part = parse_single(trim(word));
    if (!part || (*kind == ActionKind::batch ? !is_transfer(part->kind) : !is_compute(part->kind))) return std::nullopt;
    action.parts.push_back(std::move(*part));
  }
  if (action.parts.size() < 2) return std::nullopt;
  return action;
}

// A file that is no schedule has an error in every cell.
constexpr size_t kMostLinesNamed = 10;

/// Spreadsheets put quotes around cells.
std::string unquoted(const std::string& cell) {
  const std::string text = trim(cell);
  const bool quoted = text.size() >= 2 && text.starts_with('"') && text.ends_with('"');
  return quoted ? trim(text.substr(1, text.size() - 2)) : text;
}

/// Spreadsheets end tables with rows of commas.
bool holds_nothing(const std::string& line) {
  const std::vector<std::string> cells = split(line, ',');
  return std::all_of(cells.begin(), cells.end(), [](const std::string& cell) { return unquoted(cell).empty(); });
}

std::string shown_word(std::string_view word) {
  // A file that is no schedule may be one line of megabytes.
  constexpr size_t kMostShown = 40;
  std::string shown;
  for (const char c : word.substr(0, kMostShown)) shown += c >= 0x20 && c < 0x7F ? c : '?';
  return word.size() > kMostShown ? shown + "..." : shown;
}

}  // namespace

bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward || kind == ActionKind::input_gradient ||
         kind == ActionKind::weight_gradient;
}

bool is_send(ActionKind kind) { return kind == ActionKind::send_forward || kind == ActionKind::send_backward; }

bool is_receive(ActionKind kind) { return kind == ActionKind::receive_forward || kind == ActionKind::receive_backward; }

bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }

bool has_microbatch(ActionKind kind) { return is_compute(kind) || is_transfer(kind); }

std::span<const Action> leaves(const Action& action) {
  if (action.parts.empty()) return {&action, 1};
  return action.parts;
}

std::string_view word_of(ActionKind kind) {
  for (const auto& [known, word] : kWords) {
    if (known == kind) return word;
  }
  throw InvariantError("an action of an unknown kind");
}

std::string to_string(const Action& action) {
  if (is_merged(action.kind)) {
    std::vector<std::string> words;
    for (const Action& part : action.parts) words.push_back(to_string(part));
    return fmt::format("({}){}", join(words, ";"), word_of(action.kind));
  }
  const std::string head = fmt::format("{}{}", action.stage, word_of(action.kind));
  return has_microbatch(action.kind) ? fmt::format("{}{}", head, action.microbatch) : head;
}

std::optional<Action> parse_action(std::string_view word) {
  const std::string text = trim(word);
  return text.starts_with('(') ? parse_merged(text) : parse_single(text);
}

bool makes_gradient(ActionKind kind) { return has_effect(action_rules(), kind, Does::acquires, Thing::input_gradient); }

bool finishes(ActionKind kind) {
  return has_effect(action_rules(), kind, Does::releases, Thing::saved) ||
         has_effect(action_rules(), kind, Does::drops, Thing::saved);
}

std::optional<StageMessage> made_by(const Action& action, int stages) {
  const bool makes_output = has_effect(action_rules(), action.kind, Does::acquires, Thing::output);
  if (makes_output && action.stage + 1 < stages) return StageMessage{false, action.stage, action.microbatch};
  if (makes_gradient(action.kind) && action.stage > 0) return StageMessage{true, action.stage, action.microbatch};
  return std::nullopt;
}

std::optional<StageMessage> needed_by(const Action& action, int stages) {
  const auto takes = [&](Thing thing) { return has_effect(action_rules(), action.kind, Does::releases, thing); };
  if (takes(Thing::input) && action.stage > 0) return StageMessage{false, action.stage - 1, action.microbatch};
  if (takes(Thing::output_gradient) && action.stage + 1 < stages) {
    return StageMessage{true, action.stage + 1, action.microbatch};
  }
  return std::nullopt;
}

StageMessage carried_by(const Action& transfer) {
  switch (transfer.kind) {
    case ActionKind::send_forward:
    case ActionKind::handoff_forward:
      return {false, transfer.stage, transfer.microbatch};
    case ActionKind::receive_forward:
    case ActionKind::wait_forward:
      return {false, transfer.stage - 1, transfer.microbatch};
    case ActionKind::send_backward:
    case ActionKind::handoff_backward:
      return {true, transfer.stage, transfer.microbatch};
    default:
      return {true, transfer.stage + 1, transfer.microbatch};
  }
}

Action send_of(const StageMessage& message) {
  return {message.backward ? ActionKind::send_backward : ActionKind::send_forward, message.stage, message.microbatch};
}

Action receive_of(const StageMessage& message) {
  return {message.backward ? ActionKind::receive_backward : ActionKind::receive_forward, message.receiver(),
          message.microbatch};
}

CsvTable parse_csv(std::string_view text, std::string_view name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // spreadsheets write a byte order mark into CSV
  std::vector<std::string> lines = split(text, '\n');
  while (!lines.empty() && holds_nothing(lines.back())) lines.pop_back();
  CsvTable read;
  if (lines.empty()) read.problems.push_back(fmt::format("{}: holds no schedule; write one line per rank", name));
  for (size_t row = 0; row < lines.size(); ++row) {
    std::vector<Action>& actions = read.table.emplace_back();
    if (holds_nothing(lines[row]) && read.problems.size() < kMostLinesNamed) {
      read.problems.push_back(
          fmt::format("{}: row {} is empty, so rank {} would do nothing; write one row per rank and none between them",
                      name, row + 1, row));
    }
    const std::vector<std::string> cells = split(lines[row], ',');
    for (size_t cell = 0; cell < cells.size() && read.problems.size() < kMostLinesNamed; ++cell) {
      const std::string word = unquoted(cells[cell]);
      if (word.empty()) continue;
      if (std::optional<Action> action = parse_action(word)) {
        actions.push_back(std::move(*action));
        continue;
      }
      read.problems.push_back(
          fmt::format("{}: row {}, cell {}: \"{}\" is not an action; write stage, kind and microbatch, "
                      "for example 2F0 (kinds F, I, W, B; lowered ones in docs/schedules.md)",
                      name, row + 1, cell + 1, shown_word(word)));
    }
  }
  return read;
}

std::string to_csv(const ScheduleTable& table) {
  std::string text;
  for (const std::vector<Action>& actions : table) {
    std::vector<std::string> cells;
    for (const Action& action : actions) cells.push_back(to_string(action));
    text += join(cells, ",") + "\n";
  }
  return text;
}

}  // namespace titan
