// A run: everything that a job's config asks for, built once by build_run(), and the training loop, train()
// (src/train/trainer.cpp). Contains nothing specific to a parallelism, a precision or a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/job/learning_rate.h"
#include "titan/model/model.h"
#include "titan/optimize/optimizer.h"
#include "titan/parallel/assembly.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/batch.h"
#include "titan/train/device.h"
#include "titan/train/state_dict.h"
#include "titan/train/step_runner.h"

namespace titan {

class FindingExchange;
class RunCheckpoints;
class RunFolder;
class RunMemory;
class RunReporter;
class StateCheck;
class Validator;

/// When this process reached each part of its start; seconds since 1970.
struct StartTimes {
  double meeting = 0;            // it began to look for the other ranks
  double met = 0;                // all ranks were there
  double built = 0;              // build_run had returned
  double loaded = 0;             // the checkpoint was loaded
  bool follows_failure = false;  // a supervisor started it after a failure, of which it reports the cost
};

struct Run {
  struct Data {
    std::shared_ptr<const Tokenizer> tokenizer;
    std::string description;  // of the dataset
    std::unique_ptr<BatchStream> stream;
    int64_t tokens_per_step = 0;  // of all ranks
  };

  struct Model {
    ModelDescription description;
    Assembly assembly;                             // units, weights and the executor
    std::vector<Parameter*> parameters;            // of all stages, in canonical order; other ranks' without memory
    std::vector<ParameterGroup> parameter_groups;  // of `parameters`
    std::unique_ptr<Optimizer> optimizer;          // of this rank's parameters
    std::unique_ptr<SpikeGuard> guard;             // null: off
    std::unique_ptr<StepRunner> step_runner;
    LearningRateSchedule schedule;

    const Plan& plan() const { return assembly.executor->plan(); }
  };

  Run(const JobConfig& config, const World& world, const Log& log);
  ~Run();

  /// This rank's share of the step's valid tokens; 0 if it computes no loss.
  double own_share(const StepBatch& batch) const;

  const JobConfig& config;
  const Log& log;
  bool trains = true;  // false: built by build_inference
  World world;
  StartTimes start;
  DeviceInfo device;
  std::unique_ptr<RunFolder> folder;  // null except on rank 0
  MeshPlace place;                    // of this rank in the device mesh
  SequenceShare share;                // of every sequence: this rank's part under context parallelism
  MeshCommunicators communicators;
  std::unique_ptr<RunMemory> memory;
  Data data;
  Model model;
  std::unique_ptr<Validator> validator;         // null: off
  std::unique_ptr<RunCheckpoints> checkpoints;  // null: off
  std::unique_ptr<FindingExchange> findings;
  std::unique_ptr<StateCheck> state_check;  // null: a dry run
  std::unique_ptr<RunReporter> reporter;
};

/// Collective: opens device, mesh, tokenizer and corpus; plans, builds and initialises the model. `world`: this
/// process's rank and the number of ranks. `config` and `log` must outlive the run. Throws Error with the exit code.
std::unique_ptr<Run> build_run(const JobConfig& config, const World& world, const Log& log);

/// Builds only the model, with the weights that `checkpoint.initial_load_*` name: no optimizer, no folder, no data.
/// Otherwise like build_run.
std::unique_ptr<Run> build_inference(const JobConfig& config, const World& world, const Log& log);

/// Trains to the last step, or until a signal asks to stop. Throws Error(non_finite) under training.non_finite =
/// abort, Error(out_of_memory) with the settings that would fit.
ExitCode train(Run& run);

/// Loads the checkpoint that `checkpoint.*` names, if there is one, and sets the data position.
StartingPoint resume(Run& run);

/// Forward only, through all stages of the model. With a pipeline, logits are on every rank; other results are as in
/// Executor::infer.
at::Tensor infer(const Run& run, const BatchContext& batch, UnitMode mode);

/// Call it after the first step, which waits for slow starters: sets the timeout of collectives to
/// comm.train_timeout_seconds.
void use_training_timeouts(Run& run);

/// On GPUs: waits until no rank has work left, then closes all communicators. Do not call it after a failure: closing
/// NCCL blocks behind kernels that hang (NcclTransport).
void close_communicators(Run& run);

}  // namespace titan
