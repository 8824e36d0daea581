// What passes between stages: the outputs of forward and the gradients of backward, and which action makes, needs or
// carries which. Private to schedule; the rules that check, simulator and lowering share.
#pragma once

#include <compare>
#include <optional>

#include "titan/schedule/action.h"

namespace titan::detail {

/// `backward`: the gradient of that stage's input, for the stage before; else its output, for the stage after.
struct Message {
  bool backward = false;
  int stage = 0;  ///< that made it
  int microbatch = 0;
  auto operator<=>(const Message&) const = default;
  int receiver() const { return backward ? stage - 1 : stage + 1; }
};

inline bool makes_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::input_gradient;
}

/// The end of a stage's work on a microbatch: its weight gradients are complete and nothing of it is kept any longer.
inline bool finishes(ActionKind kind) { return kind == ActionKind::backward || kind == ActionKind::weight_gradient; }

/// What a compute action hands to another stage; the last stage's output and the first stage's gradient go nowhere.
inline std::optional<Message> made_by(const Action& action, int stages) {
  if (action.kind == ActionKind::forward && action.stage + 1 < stages) {
    return Message{false, action.stage, action.microbatch};
  }
  if (makes_gradient(action.kind) && action.stage > 0) return Message{true, action.stage, action.microbatch};
  return std::nullopt;
}

/// What a compute action takes from another stage.
inline std::optional<Message> needed_by(const Action& action, int stages) {
  if (action.kind == ActionKind::forward && action.stage > 0) {
    return Message{false, action.stage - 1, action.microbatch};
  }
  if (makes_gradient(action.kind) && action.stage + 1 < stages) {
    return Message{true, action.stage + 1, action.microbatch};
  }
  return std::nullopt;
}

/// What a send or receive carries.
inline Message carried_by(const Action& transfer) {
  switch (transfer.kind) {
    case ActionKind::send_forward:
      return {false, transfer.stage, transfer.microbatch};
    case ActionKind::receive_forward:
      return {false, transfer.stage - 1, transfer.microbatch};
    case ActionKind::send_backward:
      return {true, transfer.stage, transfer.microbatch};
    default:
      return {true, transfer.stage + 1, transfer.microbatch};
  }
}

inline Action send_of(const Message& message) {
  return {message.backward ? ActionKind::send_backward : ActionKind::send_forward, message.stage, message.microbatch};
}

inline Action receive_of(const Message& message) {
  return {message.backward ? ActionKind::receive_backward : ActionKind::receive_forward, message.receiver(),
          message.microbatch};
}

}  // namespace titan::detail
