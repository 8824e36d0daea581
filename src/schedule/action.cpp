#include "titan/schedule/action.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// The first kTableWords are words of tables; the rest stands in programs alone.
constexpr size_t kTableWords = 13;
constexpr std::array<std::pair<ActionKind, std::string_view>, 42> kWords{{
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
    {ActionKind::step, "STEP"},
    {ActionKind::zero_gradient, "ZERO_GRADIENT"},
}};

/// Stages and microbatches of five digits are far beyond any pipeline, and no product of two of them overflows.
constexpr size_t kMostDigits = 5;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_merged(ActionKind kind) { return kind == ActionKind::overlap || kind == ActionKind::batch; }

std::optional<ActionKind> find_kind(std::string_view word) {
  for (const auto& [kind, known] : std::span(kWords).first(kTableWords)) {
    if (known == word) return kind;
  }
  return std::nullopt;
}

/// Takes the digits at the front of `text`.
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

}  // namespace titan
