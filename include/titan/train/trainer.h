// The trainer: builds everything a config asks for, then runs the training loop. It says what happens in which order
// and leaves how to the parts: no parallelism, no precision and no model is named here.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/base/last_words.h"
#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/data/batch_stream.h"
#include "titan/distributed/mesh_groups.h"
#include "titan/model/model.h"
#include "titan/optimize/learning_rate.h"
#include "titan/optimize/optimizer.h"
#include "titan/parallel/assembly.h"
#include "titan/report/memory_snapshot.h"
#include "titan/report/run_record.h"
#include "titan/report/status_line.h"
#include "titan/report/step_profiler.h"
#include "titan/train/batch.h"
#include "titan/train/debug_dump.h"
#include "titan/train/device.h"
#include "titan/train/memory_report.h"
#include "titan/train/run_checkpoints.h"
#include "titan/train/run_folder.h"
#include "titan/train/step_meter.h"
#include "titan/train/step_runner.h"
#include "titan/train/traffic_check.h"
#include "titan/train/validator.h"

namespace titan {

class Trainer {
 public:
  /// Opens the tokenizer and the corpus, builds and initialises the model. Throws Error with the exit code to end with.
  /// `world`: which rank of how many this process is. All ranks call alike; rank 0 writes metrics, the others only when
  /// they are asked to.
  Trainer(const JobConfig& config, const World& world, const Log& log);

  /// Trains to the last step, or until a signal asks to stop. Throws Error(non_finite) under training.non_finite =
  /// abort.
  ExitCode run();

 private:
  /// A step whose work is enqueued and whose results have not been looked at.
  struct PendingStep {
    int64_t step;
    double learning_rate;
    StepReadback readback;
    double data_wait_seconds;
    int64_t batches_ready;  // when this one was taken
    DataCounters counters;
    double own_share;  // of the step's valid tokens that are this rank's; 0 where no loss is computed
  };

  /// A report whose ranks are being compared: on GPUs the answer comes behind the next step's work.
  struct PendingReport {
    StepReport report;
    StepValues values;
    std::optional<double> own_loss;       // the mean over this rank's valid tokens; none when it has none
    std::vector<MemoryRow> memory;        // after the first step
    std::optional<RankComparison> ranks;  // of several
  };

  void join_ranks();
  PlanRequest plan_request(const MeshPlace& place, const ModelDescription& model) const;
  void build_model();
  /// Measured on a GPU, and shown.
  AttentionKernel attention_kernel_for(const Plan& plan);
  /// What records the blocks of this plan, with a line that says so or why not; null: they run eagerly.
  std::unique_ptr<WorkRecorder> recorder_for(const Plan& plan);
  void open_data();
  /// Continues where a checkpoint ends, if there is one.
  void resume();
  void find_data_position(const SamplePosition& samples);
  void show_start(const StepBatch& first) const;
  /// What was taken at a peak of so many bytes, beside what the plan said of a step, or while validation runs of that.
  std::vector<MemoryRow> memory_now(int64_t peak_bytes) const;
  /// What the job's own tensors may take: what was left before it made any. Bytes of the device, or of the host's
  /// memory and of the limits on this process.
  MemoryQuestion memory_question(std::optional<RunPhase> ran_out = {}) const;
  /// What is under way, for people: "validation, forward of layers.0, after step 20".
  std::string where() const;
  /// Whether the plan and what libraries may take beside it are more than there is.
  bool lacks_memory() const;
  /// Warns when the plan takes more than there is.
  void check_memory(const Plan& plan) const;
  /// After the first step: what libraries take, against what check_memory leaves them.
  void compare_libraries() const;
  /// Does `work`; when memory runs out in it, says who holds how much and throws Error(out_of_memory) with the settings
  /// that would fit. `what` is under way: "building the model".
  void with_memory_report(const std::function<std::string()>& what, const std::function<void()>& work) const;
  /// The beginning of a batch as text.
  std::string first_text(const StepBatch& batch) const;
  /// The files that say how the run goes; after resume(), which decides whether it goes on in those of before.
  void open_record();
  /// The folder of TensorBoard's files, the same for all ranks that write some.
  std::filesystem::path choose_tensorboard_folder();
  /// What run.json and the page say of the run itself.
  nlohmann::ordered_json run_facts() const;
  /// Says where the records lie.
  void close_record(bool stopped);
  bool is_reported(int64_t step) const;
  /// Writes it down where this rank records.
  template <class Report>
  void record(const Report& report) {
    if (folder_) folder_->keep();
    if (record_) record_->add(report);
  }
  /// What is to be told of a step, without what takes other ranks.
  PendingReport report_of(const PendingStep& pending, const StepValues& values, StepReport report) const;
  /// Has the ranks compared; the answer comes behind the work that is enqueued.
  void compare_ranks(PendingReport& made);
  /// The line of the last step of a run that ends, if it has had none.
  void report_last_step();
  /// All lines that are made; waits for what the ranks compare.
  void tell_reports();
  /// The line of a step, in the log and wherever else it is recorded; `compared`: with what the ranks compare, which
  /// has come. Under the lock.
  void tell(PendingReport& made, bool compared);
  /// Before the process ends by a failure: the lines of those steps whose results come within `patience`; none later.
  /// May be called on any thread, and throws nothing.
  void tell_what_has_come(std::chrono::milliseconds patience = {});
  static constexpr std::chrono::milliseconds kLastLinesLimit{1000};
  /// After the first step: whether its loss can be that of the weights that were meant.
  void explain_start(const StepValues& values) const;
  /// Forward alone, through all stages of the model; what Executor::infer says of the other ranks.
  at::Tensor infer(const BatchContext& batch, UnitMode mode);
  /// To the last step, or until something asks to stop.
  void train();
  /// The next step; false when the corpus has run out.
  bool train_step();
  /// train_step with whatever watches steps around it.
  bool watched_step();
  void open_profilers();
  /// Whether nothing is left over that would spare the step a part of its traffic.
  bool begins_fresh(int64_t step) const;
  /// What this rank's signals and clock ask for.
  Wishes own_wishes() const;
  void save_when_due();
  void validate_when_due();
  StepOutcome run_step(const std::vector<BatchContext>& microbatches, double rate, DebugDump* dump);
  double own_share(const StepBatch& batch) const;
  /// What was sent in a step, against the plan.
  void show_traffic(int64_t step);
  void tell_differences(const TrafficCheck& check) const;
  std::unique_ptr<DebugDump> begin_dump(int64_t step, const std::vector<BatchContext>& microbatches);
  /// Waits for the results of the step that has been enqueued longest, and has its line made when it has one.
  void settle_next();
  /// Time since `start` was spent on something else than steps.
  void exclude_since(std::chrono::steady_clock::time_point start);
  /// Whether the run is to end because of the step.
  bool ends_run(const StepValues& values) const;
  /// What a step that was left out, or stands out, is worth saying. Under the lock.
  void judge(const PendingStep& pending, const StepValues& values);
  void settle_all();
  ExitCode run_job();
  ExitCode finish();
  /// On GPUs, when no rank has anything left to send: closes all groups. After a failure none is (NcclTransport).
  void end_groups();

  const JobConfig& config_;
  const Log& log_;
  bool colour_;
  World world_;
  DeviceInfo device_;
  MeshPlace place_;
  std::unique_ptr<RunFolder> folder_;  // on rank 0
  SequenceShare share_;
  PlanRequest plan_request_;
  MeshGroups groups_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelDescription description_;
  Assembly assembly_;
  std::vector<Parameter*> all_parameters_;    // of the model, in canonical order; other stages' without memory
  std::vector<ParameterGroup> model_groups_;  // of all_parameters_
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<SpikeGuard> guard_;  // null: off
  std::unique_ptr<StepRunner> step_runner_;
  LearningRateSchedule schedule_;
  uint64_t seed_ = 0;
  MemoryRoom room_;           // before anything of the job was made
  int64_t bytes_before_ = 0;  // of the process, libraries included, before anything of the job was made; 0 on a GPU

  std::string data_description_;
  std::unique_ptr<BatchStream> stream_;
  std::optional<StepBatch> next_batch_;
  int64_t tokens_per_step_ = 0;
  int64_t first_step_ = 1;   // of this process
  bool is_trained_ = false;  // it began with weights that were loaded, and not from a seed
  bool traffic_shown_ = false;
  RunPhase phase_ = RunPhase::training;  // what is under way, or was when something failed
  int64_t held_ = 0;                     // on a GPU, at most by the allocator before the last validation began
  RunPosition position_;                 // after the last step
  Wishes wishes_;                        // that all ranks agreed to follow
  DataCounters read_;                    // up to the last step
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<Validator> validator_;
  std::unique_ptr<StepProfiler> profiler_;  // null: off, as the next
  std::unique_ptr<MemorySnapshots> snapshots_;

  std::mutex telling_;  // of what follows: a thread that ends the process takes it up where this one stands
  std::unique_ptr<RunRecord> record_;  // null on a rank that records nothing
  std::unique_ptr<StepMeter> meter_;
  StatusDisplay status_{log_};
  int64_t allocation_retries_ = 0;  // that were told
  std::deque<PendingStep> pending_;
  std::deque<PendingReport> reports_;
  std::optional<PendingStep> unreported_;  // the newest step that was looked at, when it has had no line
  std::optional<StepReport> last_told_;
  bool all_told_ = false;  // the last words have been said: nothing is told any more
};

}  // namespace titan
