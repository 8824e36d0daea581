// titan_train with one difference: a rank fails at an exact place, or computes slowly. The linker puts the functions
// below in front of some of the program's own (--wrap, cmake/Tests.cmake), so the program itself has no hook for this;
// when one of them changes its signature, this does not link. In the environment:
//   DIE_IN="RANK STEP PHASE OPERATION"   PHASE: data, forward, backward, weights (of a pipeline that splits backward),
//                                        optimizer of step STEP (from 1 on): instructions of its program, many of each;
//                                        or save, where the rank writes its part of that step's checkpoint
//                                        OPERATION: the how-manieth tensor operation in all of them, 0: when it begins
//   DIE_HOW=hang                         the thread that trains does nothing more, and the others live on
//   DIE_HOW=PIPE                         the same until somebody has opened this named pipe for writing and closed it
//   FLIP_BIT="RANK STEP WHEN PARAMETER STATE ELEMENT BIT"
//                                        inverts a bit of a number of the rank's shard, once. STEP: of the run. WHEN:
//                                        "after" its optimizer, or "before" its first forward. STATE: weight, copy (the
//                                        weight in the compute dtype), or a moment's number from 0 on
//   FLIP_GRADIENT="RANK STEP PARAMETER"  inverts a bit of the gradient that the rank has computed, once, before any sum
//   NAN_IN="RANK STEP PARAMETER [TIMES]" the first number of the weight is NaN in the forwards of that step, or in the
//                                        first of them
//   NAN_MOMENT="RANK STEP PARAMETER MOMENT"  a number of the moment is NaN after the optimizer of that step
//   SLOW_DOWN="RANK FACTOR [wall]"       the rank sleeps so that its units take FACTOR times as long. If "wall" is left
//                                        out, all ranks measure computation in tensor operations instead of time, and
//                                        that sleep: other programs on the machine change nothing
//   PERTURB="RANK RELATIVE"              every product with a transposed weight is off by this share of its size
//   SLOW_PAIR="RANK RANK SECONDS"        messages between the two take so much longer
//   FAULT_ONCE=FILE                      FLIP_BIT and NAN_IN do nothing if this file exists, and make it
#include <ATen/record_function.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "titan/app/program.h"
#include "titan/checkpoint/commit.h"
#include "titan/cli/program.h"
#include "titan/distributed/communicator.h"
#include "titan/job/learning_rate.h"
#include "titan/optimize/optimizer.h"
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

// Faults of memory and of processors.

/// What the functions below know of the run.
struct Faults {
  double perturbation = 0;
  int64_t slow_peer = -1;  // of this rank
  double slow_seconds = 0;
  bool flips = false, flips_gradient = false, poisons = false, poisons_moment = false;
  int64_t flip_step = 0, gradient_step = 0, nan_step = 0, moment_step = 0;
  std::string when, state;
  std::string flipped, with_flipped_gradient, poisoned, with_poisoned_moment;  // parameters
  int64_t element = 0, bit = 0;
  int64_t times = std::numeric_limits<int64_t>::max();
  size_t moment = 0;
  double slow_factor = 1, slept = 0;
  bool counts_operations = false;

  int64_t step = 0;  // of the run, that is computed or was computed last
  std::vector<titan::Parameter*> parameters;
  titan::Optimizer* optimizer = nullptr;
  std::map<std::pair<titan::ActionKind, int>, double> usual;  // seconds of an instruction, without delay
  std::pair<titan::ActionKind, int> running{};
  double running_since = 0;
};
Faults faults;

/// True if this process is the rank with the number that `words` begins with.
bool is_for_this_rank(std::istringstream& words) {
  const char* rank = std::getenv("RANK");
  std::string wanted;
  words >> wanted;
  return wanted == (rank ? rank : "0");
}

void read_faults() {
  if (const char* text = std::getenv("FLIP_BIT")) {
    std::istringstream words(text);
    faults.flips = is_for_this_rank(words);
    words >> faults.flip_step >> faults.when >> faults.flipped >> faults.state >> faults.element >> faults.bit;
  }
  if (const char* text = std::getenv("NAN_IN")) {
    std::istringstream words(text);
    faults.poisons = is_for_this_rank(words);
    words >> faults.nan_step >> faults.poisoned;
    if (int64_t times = 0; words >> times) faults.times = times;
  }
  if (const char* text = std::getenv("FLIP_GRADIENT")) {
    std::istringstream words(text);
    faults.flips_gradient = is_for_this_rank(words);
    words >> faults.gradient_step >> faults.with_flipped_gradient;
  }
  if (const char* text = std::getenv("NAN_MOMENT")) {
    std::istringstream words(text);
    faults.poisons_moment = is_for_this_rank(words);
    words >> faults.moment_step >> faults.with_poisoned_moment >> faults.moment;
  }
  if (const char* text = std::getenv("PERTURB")) {
    std::istringstream words(text);
    double share = 0;
    const bool mine = is_for_this_rank(words);
    if (words >> share; mine) faults.perturbation = share;
  }
  if (const char* text = std::getenv("SLOW_PAIR")) {
    std::istringstream words(text);
    int64_t first = -1, second = -1;
    words >> first >> second >> faults.slow_seconds;
    const char* own = std::getenv("RANK");
    const int64_t rank = own ? std::atoll(own) : 0;
    if (rank == first) faults.slow_peer = second;
    if (rank == second) faults.slow_peer = first;
  }
  if (const char* text = std::getenv("SLOW_DOWN")) {
    std::istringstream words(text);
    double factor = 1;
    const bool mine = is_for_this_rank(words);
    std::string clock;
    words >> factor >> clock;
    faults.counts_operations = clock != "wall";
    if (mine) faults.slow_factor = factor;
  }
}

/// False if the fault has happened before, in this process or in an earlier one of the run.
bool happens_now() {
  const char* file = std::getenv("FAULT_ONCE");
  if (!file) return true;
  const int made = ::open(file, O_CREAT | O_EXCL | O_WRONLY, 0644);
  if (made >= 0) ::close(made);
  return made >= 0;
}

size_t index_of(const std::string& name) {
  for (size_t i = 0; i < faults.parameters.size(); ++i) {
    if (faults.parameters[i]->name() == name) return i;
  }
  throw std::runtime_error("this rank has no parameter " + name);
}

void flip_bit() {
  if (!faults.flips || !happens_now()) return;
  faults.flips = false;
  const size_t index = index_of(faults.flipped);
  const titan::Parameter& parameter = *faults.parameters[index];
  const at::Tensor tensor = faults.state == "weight" ? parameter.master
                            : faults.state == "copy" ? parameter.compute_copy
                                                     : faults.optimizer->moments(index).at(std::stoul(faults.state));
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  const int64_t bit = faults.element % tensor.numel() * tensor.element_size() * 8 + faults.bit;
  bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
}

/// A unit's weight is NaN while its forward runs, and what it was before and after.
class Poison {
 public:
  void begin() {
    const titan::Parameter& parameter = *faults.parameters[index_of(faults.poisoned)];
    number_ = parameter.weight().view({-1})[0];
    kept_ = number_.clone();
    number_.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  void end() {
    if (number_.defined()) number_.copy_(kept_);
    number_.reset();
  }

 private:
  at::Tensor number_, kept_;
};
Poison poison;

thread_local int64_t operations_of_thread = 0;

std::unique_ptr<at::ObserverContext> count_for_clock(const at::RecordFunction&) {
  ++operations_of_thread;
  return nullptr;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What units take: of the thread that trains.
double fault_clock() {
  constexpr double kOperation = 2e-5;  // about what one takes in the models of tests
  return faults.counts_operations ? kOperation * static_cast<double>(operations_of_thread) + faults.slept
                                  : steady_seconds();
}

/// Before an instruction: sleeps for a share of the time that it took before.
void slow_down(const titan::Action& action) {
  if (faults.running_since > 0) faults.usual[faults.running] = fault_clock() - faults.running_since;
  faults.running = {action.kind, action.unit};
  const bool is_slow = !phase_of(action.kind).empty() && action.kind != titan::ActionKind::step;
  if (is_slow) {
    const double begin = steady_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>((faults.slow_factor - 1) * faults.usual[faults.running]));
    faults.slept += steady_seconds() - begin;
  }
  faults.running_since = fault_clock();
}

/// `unit`: that the instruction is about; empty: none.
void begin_instruction(const titan::Action& action, const std::string& unit) {
  poison.end();
  if (faults.slow_factor > 1) slow_down(action);
  if (action.kind != titan::ActionKind::forward) return;
  if (faults.when == "before" && faults.step == faults.flip_step) flip_bit();
  if (!faults.poisons || faults.step != faults.nan_step || !faults.poisoned.starts_with(unit + ".")) return;
  static const bool happens = happens_now();  // then in all forwards of the step, also when it is computed again
  if (happens && faults.times-- > 0) poison.begin();
}

void flip_gradient(const titan::WeightGroupPlan& group) {
  for (const titan::ParameterPlan& planned : group.parameters) {
    if (planned.spec.name != faults.with_flipped_gradient) continue;
    faults.flips_gradient = false;
    at::Tensor& gradient = faults.parameters[index_of(planned.spec.name)]->gradient();
    *static_cast<uint8_t*>(gradient.mutable_data_ptr()) ^= 1;
  }
}

void poison_moment() {
  faults.poisons_moment = false;
  const size_t index = index_of(faults.with_poisoned_moment);
  faults.optimizer->moments(index).at(faults.moment).view({-1})[0].fill_(std::numeric_limits<double>::quiet_NaN());
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
    const size_t unit = static_cast<size_t>(std::max(action.unit, 0));
    begin_instruction(action, action.unit < 0 ? std::string() : executor->plan().units[unit].name);
    if (faults.flips_gradient && faults.step == faults.gradient_step &&
        action.kind == titan::ActionKind::close_gradient) {
      flip_gradient(executor->plan().groups[static_cast<size_t>(action.group)]);
    }
    if (observer) observer(action);
  });
  in_phase = false;
  poison.end();
  const bool is_update = program.kind == titan::ProgramKind::update;
  if (is_update && faults.when == "after" && faults.step == faults.flip_step) flip_bit();
  if (is_update && faults.poisons_moment && faults.step == faults.moment_step) poison_moment();
  return result;
}

using Factor = double(const titan::LearningRateSchedule*, int64_t);
Factor real_factor asm("__real__ZNK5titan20LearningRateSchedule6factorEl");
Factor factor asm("__wrap__ZNK5titan20LearningRateSchedule6factorEl");
double factor(const titan::LearningRateSchedule* schedule, int64_t step) {
  faults.step = step;
  return real_factor(schedule, step);
}

using MakeOptimizer = std::unique_ptr<titan::Optimizer>(std::vector<titan::Parameter*>,
                                                        const std::vector<titan::ParameterGroup>&, const titan::Plan&,
                                                        uint64_t, std::shared_ptr<titan::HostOffload>);
MakeOptimizer real_make_optimizer asm(
    "__real__ZN5titan14make_optimizerESt6vectorIPNS_9ParameterESaIS2_EERKS0_INS_14ParameterGroupESaIS5_EERKNS_"
    "4PlanEmSt10shared_ptrINS_11HostOffloadEE");
MakeOptimizer make_optimizer asm(
    "__wrap__ZN5titan14make_optimizerESt6vectorIPNS_9ParameterESaIS2_EERKS0_INS_14ParameterGroupESaIS5_EERKNS_"
    "4PlanEmSt10shared_ptrINS_11HostOffloadEE");
std::unique_ptr<titan::Optimizer> make_optimizer(std::vector<titan::Parameter*> parameters,
                                                 const std::vector<titan::ParameterGroup>& groups,
                                                 const titan::Plan& plan, uint64_t seed,
                                                 std::shared_ptr<titan::HostOffload> offload) {
  faults.parameters = parameters;
  std::unique_ptr<titan::Optimizer> optimizer =
      real_make_optimizer(std::move(parameters), groups, plan, seed, std::move(offload));
  faults.optimizer = optimizer.get();
  return optimizer;
}

using ComputeTime = double();
ComputeTime real_compute_time asm("__real__ZN5titan12compute_timeEv");
ComputeTime compute_time asm("__wrap__ZN5titan12compute_timeEv");
double compute_time() { return faults.counts_operations ? fault_clock() : real_compute_time(); }

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

using Product = at::Tensor(const at::Tensor&, const at::Tensor&);
Product real_product asm("__real__ZN5titan23product_with_transposedERKN2at6TensorES3_");
Product product asm("__wrap__ZN5titan23product_with_transposedERKN2at6TensorES3_");
at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor result = real_product(x, weight);
  return faults.perturbation == 0 ? result : result.mul_(1 + faults.perturbation);
}

using Permute = titan::Pending(titan::Communicator*, std::vector<at::Tensor>, std::vector<at::Tensor>, int64_t,
                               int64_t);
Permute real_permute asm("__real__ZN5titan12Communicator7permuteESt6vectorIN2at6TensorESaIS3_EES5_ll");
Permute permute asm("__wrap__ZN5titan12Communicator7permuteESt6vectorIN2at6TensorESaIS3_EES5_ll");
titan::Pending permute(titan::Communicator* communicator, std::vector<at::Tensor> outputs,
                       std::vector<at::Tensor> inputs, int64_t to, int64_t from) {
  const bool slow = to >= 0 && to == faults.slow_peer && communicator->name() == "world";
  if (slow) std::this_thread::sleep_for(std::chrono::duration<double>(faults.slow_seconds));
  return real_permute(communicator, std::move(outputs), std::move(inputs), to, from);
}
// NOLINTEND

int main(int argc, char** argv) {
  read_death();
  read_faults();
  if (faults.counts_operations) at::addGlobalCallback(at::RecordFunctionCallback(count_for_clock));
  if (death.mine) at::addGlobalCallback(at::RecordFunctionCallback(count_operation));
  return titan::end_process(titan::run_program({argv + 1, argv + argc}));
}
