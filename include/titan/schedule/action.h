// The actions of a rank, in one enumeration. Tables of a pipeline schedule name stages, with the words of PyTorch
// 2.11's CSV files, so that they can be exchanged (docs/schedules.md). The program of a step (plan/program.h) also
// names units and weight groups (docs/architecture.md). Pure data: no tensors, no times.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

enum class ActionKind : uint8_t {
  // Actions of a stage. In a program, forward and backward also name a unit, unshard and reshard a weight group.
  forward,           ///< F
  backward,          ///< B: both gradients at once
  input_gradient,    ///< I: the gradient of the stage's input, weight gradients deferred
  weight_gradient,   ///< W: the weight gradients that I deferred
  unshard,           ///< UNSHARD: start to gather the stage's weights
  reshard,           ///< RESHARD: release them
  reduce_grad,       ///< REDUCE_GRAD: the stage's gradients are complete and can be reduced
  send_forward,      ///< SEND_F: the stage's output to the next stage
  receive_forward,   ///< RECV_F: the stage's input from the stage before
  send_backward,     ///< SEND_B: the gradient of the stage's input to the stage before
  receive_backward,  ///< RECV_B: the gradient of the stage's output from the next stage
  overlap,           ///< OVERLAP_F_B: a forward and a backward of two stages that a runtime may interleave
  batch,             ///< BATCH: sends and receives that are posted together (not a word of PyTorch's)

  // The following are only in programs. Hidden states between stages:
  handoff_forward,   ///< passes a stage's output to the next stage on this rank, rounded like a message
  handoff_backward,  ///< the same for the gradient of a stage's input, to the previous stage
  wait_forward,      ///< waits for the input of a stage
  wait_backward,     ///< waits for the gradient of a stage's output
  wait_sends,        ///< waits until the memory of everything that was sent may be reused
  // Units:
  evaluate,    ///< a unit's forward that saves nothing for backward
  offload,     ///< starts the copy of a unit's saved activations to the host
  fetch,       ///< starts the copy back
  wait_fetch,  ///< waits for it
  graph,       ///< forward and backward of all units, possibly replayed as one CUDA graph
  // Weights of a group:
  refresh,       ///< compute copies of this rank's shard, unless the optimizer wrote them; float8 scales, if the
                 ///< weights are resident or gathered in float8
  wait_unshard,  ///< waits for the all-gather: units may use the weights
  scale,         ///< float8 scales of the unsharded weights; without a group: of the shards of all groups
  // Gradients of a group, in this order:
  open_gradient,   ///< provides its storage; the first write overwrites, later writes add
  close_gradient,  ///< every microbatch has been added
  reduce_scatter,  ///< starts the sum over shards
  all_reduce,      ///< starts the sum over replicas
  wait_reduce,     ///< waits for the sum that was started last
  reduce_partial,  ///< sums the partial gradients of weights that every tensor-parallel rank holds whole
  add_tied,        ///< sums the gradients of tied embeddings over the two pipeline ranks that hold them
  to_host,         ///< starts the copy to the optimizer on the host
  wait_host,       ///< waits until gradients, clip factor and skip flag are on the host
  // The step; with a group: only that group's, when stepping in backward.
  loss_sum,       ///< the loss of all ranks
  squares,        ///< the exact sum of squares of this rank's gradient shards
  norm,           ///< the sum of these squares over all ranks
  control,        ///< clip factor, skip flag and spike guard, on the device
  before_change,  ///< copies the weights and moments that an asynchronous save has not read yet
  collect,        ///< starts to send the parts of a group's matrices that are updated as a whole, each to one rank
  transform,      ///< waits for that, computes the updates of this rank's matrices, and starts to send their parts back
  wait_transform,  ///< waits for this rank's parts of the updates, which are then in the place of its gradients
  step,            ///< the optimizer; compute copies and unsharded weights are stale from here on
  zero_gradient,   ///< the optimizer has read the gradients: they are released; nothing is set to zero
};

/// Fields that do not apply are -1. `parts` is empty except for merged actions: overlap, batch and graph.
struct Action {
  ActionKind kind;
  int stage = -1;
  int microbatch = -1;
  std::vector<Action> parts{};
  int unit = -1;   // of Plan::units
  int group = -1;  // of Plan::groups
  int slot = -1;   // of Plan::weight_slots or gradient_slots, depending on the kind; -1: the group's own memory
  bool operator==(const Action&) const = default;
};

/// [rank][position]. Idle time is not an action; a simulation computes it.
using ScheduleTable = std::vector<std::vector<Action>>;

/// F, B, I or W.
bool is_compute(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);
bool is_transfer(ActionKind kind);
/// True if an action of this kind has a microbatch.
bool has_microbatch(ActionKind kind);

/// The parts of a merged action; for any other action the action itself. Valid as long as `action` is.
std::span<const Action> leaves(const Action& action);

/// "2F0", "1UNSHARD", "(0F4;3B1)OVERLAP_F_B".
std::string to_string(const Action& action);
std::string_view word_of(ActionKind kind);

/// The inverse of to_string; ignores spaces around the word. Nothing if the word is not an action.
std::optional<Action> parse_action(std::string_view word);

// ---- messages between stages: the rules that checks, simulator, lowering and programs share

/// A message between two stages. `backward`: the gradient of that stage's input, for the previous stage; otherwise its
/// output, for the next stage.
struct StageMessage {
  bool backward = false;
  int stage = 0;  ///< the stage that produced it
  int microbatch = 0;
  auto operator<=>(const StageMessage&) const = default;
  int receiver() const { return backward ? stage - 1 : stage + 1; }
};

/// True if the action computes the gradient of its stage's input.
bool makes_gradient(ActionKind kind);
/// True for the last action of a stage on a microbatch: weight gradients are complete and activations are freed.
bool finishes(ActionKind kind);
/// The message that a compute action produces; none for the last stage's output and the first stage's gradient.
std::optional<StageMessage> made_by(const Action& action, int stages);
/// The message that a compute action needs.
std::optional<StageMessage> needed_by(const Action& action, int stages);
/// The message of a send, receive, wait or handoff.
StageMessage carried_by(const Action& transfer);
Action send_of(const StageMessage& message);
Action receive_of(const StageMessage& message);

// ---- tables as text: one line per rank, cells separated by commas, an empty cell for idle time. PyTorch 2.11 reads
// the output of to_csv and vice versa (docs/schedules.md).

struct CsvTable {
  ScheduleTable table;
  std::vector<std::string> problems;  ///< sentences; empty when every cell is an action or empty
};

/// Parses `text`; `name` (the file's) is used only in messages: "mine.csv: row 2, cell 5: \"2X1\" is not an action; …".
/// Does not check whether the table can run (see table.h).
CsvTable parse_csv(std::string_view text, std::string_view name);

/// One line per rank, without idle cells.
std::string to_csv(const ScheduleTable& table);

}  // namespace titan
