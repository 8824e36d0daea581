// titan_train with one difference: a rank kills itself at an exact place. The linker puts the functions below in front
// of some of the program's own (--wrap, cmake/Tests.cmake), so the program itself has no hook for this; when one of
// them changes its signature, this does not link. In the environment:
//   DIE_IN="RANK STEP PHASE OPERATION"   PHASE: data, forward, backward, weights (of a pipeline that splits backward),
//                                        optimizer of step STEP (from 1 on): instructions of its program, many of each;
//                                        or save, where the rank writes its part of that step's checkpoint
//                                        OPERATION: the how-manieth tensor operation in all of them, 0: when it begins
//   DIE_HOW=hang                         the thread that trains does nothing more, and the others live on
//   DIE_HOW=PIPE                         the same until somebody has opened this named pipe for writing and closed it
#include <ATen/record_function.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>

#include "titan/app/program.h"
#include "titan/checkpoint/commit.h"
#include "titan/cli/program.h"
#include "titan/parallel/executor.h"
#include "titan/stream/batch_stream.h"

namespace {

/// Where to die, and how far this rank has come. The replaced functions have no other place for what they must know.
struct Death {
  bool mine = false;
  bool hangs = false;
  std::string pipe;
  int64_t step = 0;
  std::string phase;
  int64_t operation = 0;

  int64_t step_now = 0;  // the one whose data was asked for last
  int64_t operations = 0;
};
Death death;
// Of the thread that trains alone: the library runs operations on threads of its own, and one that hangs there is not a
// rank that hangs by itself.
thread_local bool in_phase = false;

void read_death() {
  const char* place = std::getenv("DIE_IN");
  const char* rank = std::getenv("RANK");
  if (!place || !rank) return;
  std::string dying_rank;
  std::istringstream words(place);
  words >> dying_rank >> death.step >> death.phase >> death.operation;
  death.mine = dying_rank == rank;
  const char* how = std::getenv("DIE_HOW");
  death.hangs = how != nullptr;
  if (death.hangs && std::string(how) != "hang") death.pipe = how;
}

void wait_for_pipe() {
  const int pipe = TEMP_FAILURE_RETRY(::open(death.pipe.c_str(), O_RDONLY));
  char byte = 0;
  while (TEMP_FAILURE_RETRY(::read(pipe, &byte, 1)) > 0) continue;
  ::close(pipe);
}

void die_at(int64_t operation) {
  if (operation != death.operation) return;
  if (!death.hangs) ::raise(SIGKILL);
  if (!death.pipe.empty()) return wait_for_pipe();
  for (;;) ::pause();
}

void begin_phase(std::string_view name) {
  in_phase = death.mine && death.phase == name && death.step == death.step_now;
  if (in_phase) die_at(0);
}

/// What DIE_IN calls an instruction of a step; empty: nothing.
std::string_view phase_of(titan::ActionKind kind) {
  using enum titan::ActionKind;
  if (kind == forward) return "forward";
  if (kind == backward) return "backward";
  if (kind == weight_gradient) return "weights";
  return kind == step ? "optimizer" : "";
}

std::unique_ptr<at::ObserverContext> count_operation(const at::RecordFunction&) {
  if (in_phase) die_at(++death.operations);
  return nullptr;
}

}  // namespace

// NOLINTBEGIN: names that the linker gives, not this file.
using Next = std::optional<titan::StepBatch>(titan::BatchStream*, const std::function<bool()>&);
Next real_next asm("__real__ZN5titan11BatchStream4nextERKSt8functionIFbvEE");
Next next asm("__wrap__ZN5titan11BatchStream4nextERKSt8functionIFbvEE");
std::optional<titan::StepBatch> next(titan::BatchStream* stream, const std::function<bool()>& stops) {
  ++death.step_now;
  begin_phase("data");
  std::optional<titan::StepBatch> batch = real_next(stream, stops);
  in_phase = false;
  return batch;
}

using Run = at::Tensor(titan::Executor*, const titan::Program&, std::span<const titan::BatchContext>, titan::StepWork&,
                       const titan::Executor::Observer&);
Run real_run asm(
    "__real__ZN5titan8Executor3runERKNS_7ProgramESt4spanIKNS_12BatchContextELm18446744073709551615EERNS_"
    "8StepWorkERKSt8functionIFvRKNS_6ActionEEE");
Run run asm(
    "__wrap__ZN5titan8Executor3runERKNS_7ProgramESt4spanIKNS_12BatchContextELm18446744073709551615EERNS_"
    "8StepWorkERKSt8functionIFvRKNS_6ActionEEE");
at::Tensor run(titan::Executor* executor, const titan::Program& program,
               std::span<const titan::BatchContext> microbatches, titan::StepWork& work,
               const titan::Executor::Observer& observer) {
  at::Tensor result = real_run(executor, program, microbatches, work, [&](const titan::Action& action) {
    begin_phase(phase_of(action.kind));
    if (observer) observer(action);
  });
  in_phase = false;
  return result;
}

using WriteData = std::optional<titan::FileRecord>(titan::Storage&, const titan::SavePlace&, int64_t,
                                                   std::span<const titan::SavedValue>, size_t,
                                                   const titan::WrittenTensor&, int64_t);
WriteData real_write_data asm(
    "__real__ZN5titan10write_dataERNS_7StorageERKNS_9SavePlaceElSt4spanIKNS_"
    "10SavedValueELm18446744073709551615EEmRKSt8functionIFNS_11TensorBytesEmEEl");
WriteData write_data asm(
    "__wrap__ZN5titan10write_dataERNS_7StorageERKNS_9SavePlaceElSt4spanIKNS_"
    "10SavedValueELm18446744073709551615EEmRKSt8functionIFNS_11TensorBytesEmEEl");
std::optional<titan::FileRecord> write_data(titan::Storage& storage, const titan::SavePlace& place, int64_t rank,
                                            std::span<const titan::SavedValue> values, size_t writes,
                                            const titan::WrittenTensor& tensor, int64_t file) {
  // A rank's files may be written by several threads: all wait for the first, which dies once.
  static std::once_flag once;
  if (death.mine && death.phase == "save" && death.step == place.step) std::call_once(once, [] { die_at(0); });
  return real_write_data(storage, place, rank, values, writes, tensor, file);
}
// NOLINTEND

int main(int argc, char** argv) {
  read_death();
  if (death.mine) at::addGlobalCallback(at::RecordFunctionCallback(count_operation));
  return titan::end_process(titan::run_program({argv + 1, argv + argc}));
}
