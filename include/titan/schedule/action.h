// One step of a pipeline schedule, and the table of them: for every rank the actions in the order in which it runs
// them. The words are those of PyTorch 2.11's CSV files, so that tables can be exchanged (docs/schedules.md). Pure
// data: no tensors, no times, no machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

enum class ActionKind : uint8_t {
  forward,           ///< F
  backward,          ///< B: both gradients at once
  input_gradient,    ///< I: the gradient of the stage's input, weight gradients deferred
  weight_gradient,   ///< W: the weight gradients that I deferred
  unshard,           ///< UNSHARD: begin to gather the stage's weights
  reshard,           ///< RESHARD: release them
  reduce_grad,       ///< REDUCE_GRAD: the stage's gradients are complete and can be reduced
  send_forward,      ///< SEND_F: the stage's output to the next stage
  receive_forward,   ///< RECV_F: the stage's input from the stage before
  send_backward,     ///< SEND_B: the gradient of the stage's input to the stage before
  receive_backward,  ///< RECV_B: the gradient of the stage's output from the next stage
  overlap,           ///< OVERLAP_F_B: a forward and a backward of two stages that a runtime may interleave
  batch,             ///< BATCH: sends and receives that are posted together (PyTorch has no word for it)
};

/// `stage` and `microbatch` are -1 where they say nothing: the microbatch of UNSHARD, RESHARD and REDUCE_GRAD, both of
/// a merged action. `parts` is empty but for merged actions.
struct Action {
  ActionKind kind;
  int stage = -1;
  int microbatch = -1;
  std::vector<Action> parts{};
  bool operator==(const Action&) const = default;
};

/// [rank][position]. Idle time is no action: it is what a simulation finds.
using ScheduleTable = std::vector<std::vector<Action>>;

/// F, B, I or W.
bool is_compute(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);
bool is_transfer(ActionKind kind);
/// Whether an action of this kind is about one microbatch.
bool has_microbatch(ActionKind kind);

/// The parts of a merged action, any other action itself. Valid as long as `action` is.
std::span<const Action> leaves(const Action& action);

/// "2F0", "1UNSHARD", "(0F4;3B1)OVERLAP_F_B".
std::string to_string(const Action& action);
std::string_view word_of(ActionKind kind);

/// The inverse of to_string, spaces around the word ignored; nothing for a word that is no action.
std::optional<Action> parse_action(std::string_view word);

}  // namespace titan
