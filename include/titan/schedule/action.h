// The one vocabulary of what a rank does. Tables of a pipeline schedule name stages, in the words of PyTorch 2.11's CSV
// files, so that they can be exchanged (docs/schedules.md); the program of a step (parallel/program.h) names units and
// weight groups as well (docs/architecture.md). Pure data: no tensors, no times, no machine.
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
  // Of a stage. In a program forward and backward name a unit too, unshard and reshard a weight group.
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
  batch,             ///< BATCH: sends and receives that are posted together (PyTorch has no word for it)

  // Only in programs. Hidden states between stages:
  handoff_forward,   ///< a stage's output becomes the input of the next stage, on this rank: rounded as a message is
  handoff_backward,  ///< the same with the gradient of a stage's input, to the stage before
  wait_forward,      ///< the input of a stage has been received
  wait_backward,     ///< the gradient of a stage's output has been received
  wait_sends,        ///< the memory of everything that was sent may be used again
  // Units:
  evaluate,    ///< a unit's forward that keeps nothing for a backward
  offload,     ///< starts the copy of a unit's saved activations to the host
  fetch,       ///< starts the copy back
  wait_fetch,  ///< waits for it
  graph,       ///< forward and backward of all units, which may be replayed as one CUDA graph
  // Weights of a group:
  refresh,       ///< compute copies of this rank's shard, unless the optimizer wrote them; float8 scales, if the
                 ///< weights are resident or gathered in float8
  wait_unshard,  ///< waits for the all-gather: units may use the weights
  scale,         ///< float8 scales of the unsharded weights; without a group: of the shards of all groups
  // Gradients of a group, in this order:
  open_gradient,   ///< storage for it; what is written first overwrites, later writes add
  close_gradient,  ///< every microbatch has added its part
  reduce_scatter,  ///< starts the sum over shards
  all_reduce,      ///< starts the sum over replicas
  wait_reduce,     ///< waits for the sum that was started last
  reduce_partial,  ///< sums what each tensor-parallel rank has of weights that all of them hold whole
  add_tied,        ///< sums the gradients of tied embeddings over the two pipeline ranks that hold them
  to_host,         ///< starts the copy to the optimizer on the host
  wait_host,       ///< waits until gradients, clip factor and skip flag are on the host
  // The step; with a group: of that group alone, when it is stepped within backward.
  loss_sum,       ///< the loss of all ranks
  squares,        ///< the exact sum of squares of this rank's gradient shards
  norm,           ///< and of all ranks'
  control,        ///< clip factor, skip flag and spike guard, on the device
  before_change,  ///< copies the weights and moments that an asynchronous save has not read yet
  step,           ///< the optimizer; compute copies and unsharded weights are stale from here on
  zero_gradient,  ///< the optimizer is done with the gradients: they are let go of, and nothing is set to zero
};

/// Fields that do not apply are -1. `parts` is empty but for merged actions: overlap, batch and graph.
struct Action {
  ActionKind kind;
  int stage = -1;
  int microbatch = -1;
  std::vector<Action> parts{};
  int unit = -1;   // of Plan::units
  int group = -1;  // of Plan::groups
  int slot = -1;   // of Plan::weight_slots or gradient_slots, as the kind says; -1: the group's own memory
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

// ---- what stages exchange: the rules that checks, simulator, lowering and programs share

/// What passes between two stages. `backward`: the gradient of that stage's input, for the stage before; else its
/// output, for the stage after.
struct StageMessage {
  bool backward = false;
  int stage = 0;  ///< that made it
  int microbatch = 0;
  auto operator<=>(const StageMessage&) const = default;
  int receiver() const { return backward ? stage - 1 : stage + 1; }
};

/// Whether the action computes the gradient of its stage's input.
bool makes_gradient(ActionKind kind);
/// The end of a stage's work on a microbatch: its weight gradients are complete and its activations are freed.
bool finishes(ActionKind kind);
/// What a compute action hands to another stage; none for the last stage's output and the first stage's gradient.
std::optional<StageMessage> made_by(const Action& action, int stages);
/// What a compute action takes from another stage.
std::optional<StageMessage> needed_by(const Action& action, int stages);
/// What a send, receive, wait or handoff is about.
StageMessage carried_by(const Action& transfer);
Action send_of(const StageMessage& message);
Action receive_of(const StageMessage& message);

// ---- tables as text: one line per rank, cells separated by commas, an empty cell for idle time. PyTorch 2.11 reads
// what to_csv writes and the other way round (docs/schedules.md).

struct CsvTable {
  ScheduleTable table;
  std::vector<std::string> problems;  ///< sentences; empty when every cell is an action or empty
};

/// Reads what `text` holds; `name` (the file's) is only shown: "mine.csv: row 2, cell 5: \"2X1\" is no action; …".
/// Whether the table makes sense is another question (table.h).
CsvTable parse_csv(std::string_view text, std::string_view name);

/// One line per rank, without idle cells.
std::string to_csv(const ScheduleTable& table);

}  // namespace titan
