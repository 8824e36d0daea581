// What a trainer shows and records of its steps.
#include <ATen/Parallel.h>

#include "titan/base/clock.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/config/dump.h"
#include "titan/config/schema.h"
#include "titan/train/job.h"
#include "titan/train/start_report.h"
#include "titan/train/trainer.h"

namespace titan {

// A dry run stands for a run elsewhere: the numbers it comes by are none of its folder's.
void Trainer::open_record() {
  const MetricsSection& wanted = config_.metrics;
  if (world_.fake || (world_.rank != 0 && !wanted.save_for_all_ranks)) return;
  const std::filesystem::path top = config_.job.dump_folder;
  const std::filesystem::path own = world_.rank == 0 ? top : top / fmt::format("rank-{:04}", world_.rank);
  RecordTargets targets{.metrics = own / "metrics.jsonl",
                        .tensorboard = {},
                        .prometheus = {},
                        .run = top.string(),
                        .report = false,
                        .facts = {}};
  if (wanted.enable_tensorboard) {
    targets.tensorboard = choose_tensorboard_folder();
    log_.info("TensorBoard logging enabled. Logs will be saved at {}", targets.tensorboard.string());
  }
  if (wanted.prometheus_file && world_.rank == 0) targets.prometheus = top / *wanted.prometheus_file;
  if (wanted.report && world_.rank == 0) {
    targets.report = true;
    targets.facts = run_facts();
  }
  if (wanted.enable_wandb) {
    log_.shared_warning(
        "metrics.enable_wandb: this program does not talk to Weights & Biases; this does, while the run goes on or "
        "after it: python3 scripts/to_wandb.py {} --follow",
        top.string());
  }
  record_ = std::make_unique<RunRecord>(targets, first_step_, log_);
}

std::filesystem::path Trainer::choose_tensorboard_folder() {
  const std::filesystem::path root = std::filesystem::path(config_.job.dump_folder) / config_.metrics.save_tb_folder;
  const bool several = config_.metrics.save_for_all_ranks && world_.store;
  const std::string key = "tensorboard";
  std::filesystem::path folder;
  if (world_.rank == 0) folder = tensorboard_folder(root, /*goes_on=*/first_step_ > 1, wall_time());
  if (!several) return folder;
  // Ranks' clocks may show different minutes.
  if (world_.rank == 0) world_.store->set(key, folder.filename().string());
  return root / world_.store->get_to_str(key) / fmt::format("rank_{}", world_.rank);
}

nlohmann::ordered_json Trainer::run_facts() const {
  const BatchPlan batch = make_batch_plan(config_, place_);
  std::vector<std::string> layout;
  for (const MeshAxis axis : kMeshAxes) {
    if (place_.mesh.size(axis) > 1) layout.push_back(fmt::format("{} {}", name(axis), place_.mesh.size(axis)));
  }
  nlohmann::ordered_json facts{
      {"description", config_.job.description},
      {"model", fmt::format("{} {}, {}", description_.name, description_.flavor, description_.summary)},
      {"parameters", with_thousands(description_.parameter_count())},
      {"tokens_per_step", with_thousands(batch.global_batch() * batch.sequence_length)},
      {"steps", config_.training.steps},
      {"device", device_.name},
      {"device_memory", human_bytes(static_cast<double>(device_.memory_bytes))},
      {"ranks", world_.size},
      {"layout", join(layout, ", ")},
      {"threads", at::get_num_threads()},
      {"host", host_name()},
      {"started", local_time(wall_time())},
      {"data", data_description_},
      {"folder", std::filesystem::absolute(config_.job.dump_folder).lexically_normal().string()}};
  if (next_batch_) facts["sample"] = first_text(*next_batch_);
  facts["config"] = parse_json<nlohmann::ordered_json>(dump_json(Schema(), config_));
  return facts;
}

void Trainer::close_record(bool stopped) {
  record_->finish(stopped ? RunStanding::stopped : RunStanding::finished);
  log_.info("  metrics       {}", record_->metrics_path().string());
  if (config_.metrics.report && world_.rank == 0) {
    log_.info("  report        {}", (std::filesystem::path(config_.job.dump_folder) / "report.html").string());
  }
}

void Trainer::tell(PendingReport& made, bool compared) {
  StepReport& report = made.report;
  if (compared) made.ranks->add_to(report);
  log_.painted(world_.fake ? dry_run_line(report) : console_line(report, colour_));
  if (report.allocation_retries > allocation_retries_) {
    log_.warning("{} CUDA memory allocation retries so far: memory is nearly full, and each of them stops the device",
                 report.allocation_retries);
    allocation_retries_ = report.allocation_retries;
  }
  for (const MemoryRow& row : made.memory) report.memory_by_purpose.push_back({row.purpose, row.planned, row.actual});
  record(report);
  last_told_ = report;
  if (status_.is_due()) status_.show(report);
  if (report.step != first_step_) return;
  explain_start(made.values);
  if (made.memory.empty()) return;
  log_.info("memory by purpose, at the peak of the first step:");
  for (const std::string& line : comparison_table(made.memory)) log_.info(line);
}

void Trainer::explain_start(const StepValues& values) const {
  if (world_.fake) return;
  // A run that goes on after a few steps may know nothing yet, and rightly.
  const bool begins = first_step_ == 1;
  const std::optional<std::string> note =
      explain_first_loss(values.loss, description_.vocabulary, begins && is_trained_, begins && !is_trained_);
  if (note) log_.shared_warning(*note);
}

}  // namespace titan
