// plan --gpu: whether the job fits, the step time and the layout search.
#include "titan/estimate/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/estimate/memory_settings.h"
#include "titan/estimate/planned_job.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/job/pipeline_job.h"

namespace titan {
namespace {

/// Reserved memory of an allocator relative to its tensors: a GPU's was seen to take up to 4 % more
/// (mock_gpu_memory_test).
constexpr double kReserved = 1.04;
constexpr const char* kLastRank = "waiting for the last rank";
// CUDA's context, libraries and the buffers of communicators, which no allocator of tensors counts.
constexpr double kContextBytes = 1.2 * kGiB;

/// The rank with the longest compute time.
const SimulatedRank& busiest(const SimulatedStep& step) {
  const auto busy = [](const SimulatedRank& rank) {
    double seconds = 0;
    for (const auto& [purpose, part] : rank.seconds) seconds += purpose.starts_with("waiting") ? 0 : part;
    return seconds;
  };
  return *std::max_element(step.ranks.begin(), step.ranks.end(),
                           [&](const auto& a, const auto& b) { return busy(a) < busy(b); });
}

/// In descending order; the rest of the step is a wait for the last rank.
std::vector<std::pair<double, std::string>> time_by_purpose(const SimulatedStep& step) {
  std::vector<std::pair<double, std::string>> parts;
  double sum = 0;
  for (const auto& [purpose, seconds] : busiest(step).seconds) parts.emplace_back(seconds, purpose), sum += seconds;
  parts.emplace_back(std::max(0.0, step.seconds - sum), kLastRank);
  std::sort(parts.rbegin(), parts.rend());
  return parts;
}

/// Waits of the rank with the longest compute time, in seconds: for other stages (the pipeline bubble), or for messages
/// and copies.
struct Waits {
  double bubble = 0;
  double communication = 0;
};

Waits waits_of(const SimulatedStep& step) {
  Waits waits;
  for (const auto& [seconds, purpose] : time_by_purpose(step)) {
    if (!purpose.starts_with("waiting")) continue;
    const bool is_bubble = purpose == kWaitForStages || (step.ranks.size() > 1 && purpose == kLastRank);
    (is_bubble ? waits.bubble : waits.communication) += seconds;
  }
  return waits;
}

}  // namespace

int64_t room_of(const Hardware& hardware) { return static_cast<int64_t>(hardware.memory_bytes) - kLibraryBytes; }

double Prediction::reserved_bytes() const {
  return kReserved * static_cast<double>(plans[peak].predicted_bytes(/*device_only=*/true));
}
double Prediction::needed_bytes() const { return reserved_bytes() + kContextBytes; }

namespace {

/// Everything except the time.
Prediction predict_memory(const JobConfig& config, const ModelDescription& model, int64_t world,
                          const Hardware& hardware) {
  Prediction result;
  result.hardware = hardware;
  result.world = world;
  const DeviceMesh mesh = make_mesh(config, world);
  const MeshAxis along[] = {MeshAxis::pp};
  const int64_t chunks = choose_loss_chunks(config, model, mesh, room_of(hardware));
  const bool is_pipeline = mesh.size(MeshAxis::pp) > 1;
  const PipelinePlan pipeline = is_pipeline ? make_pipeline(config, model) : PipelinePlan();
  for (const int64_t rank : mesh.members(0, along)) {
    PlanRequest request = make_plan_request(config, {mesh, rank}, /*on_gpu=*/true);
    if (is_pipeline) add_pipeline(request, pipeline, model);
    request.training.loss_chunks = chunks;
    result.plans.push_back(make_plan(model, request));
    const bool needs_more = result.plans.back().predicted_bytes(true) > result.plans[result.peak].predicted_bytes(true);
    if (needs_more) result.peak = result.plans.size() - 1;
  }
  return result;
}

/// With the rate of the attention kernel that the run takes (preferred_for, debug.attention_kernel).
Hardware in_a_step(const Hardware& hardware, const RateShares& shares, const JobConfig& config,
                   const ModelDescription& model) {
  const bool named = config.debug.attention_kernel == "flash";
  return hardware.in_a_step(shares, named || config.debug.deterministic || model.block_causal);
}

void predict_time(Prediction& prediction, const JobConfig& config, const ModelDescription& model, bool keep_events) {
  const Hardware& hardware = prediction.hardware;
  prediction.step = simulate_step(prediction.plans, in_a_step(hardware, hardware.likely, config, model), keep_events);
  prediction.tokens_per_second = prediction.tokens_per_second_at(prediction.step);
}

}  // namespace

Prediction predict(const JobConfig& config, const ModelDescription& model, int64_t world, const Hardware& hardware,
                   bool keep_events) {
  Prediction result = predict_memory(config, model, world, hardware);
  predict_time(result, config, model, keep_events);
  result.good = hardware.has_range() ? simulate_step(result.plans, in_a_step(hardware, hardware.good, config, model))
                                     : result.step;
  return result;
}

double Prediction::tokens_per_second_at(const SimulatedStep& simulated) const {
  return static_cast<double>(plans[0].request.tokens_per_step()) / simulated.seconds / static_cast<double>(world);
}
double Prediction::flops() const {
  return static_cast<double>(plans[0].request.tokens_per_step() * plans[0].flops_per_token);
}
std::optional<double> Prediction::mfu(const SimulatedStep& simulated) const {
  const std::optional<double> peak = peak_flops_of(hardware.name);
  if (!peak) return std::nullopt;
  return flops() / simulated.seconds / static_cast<double>(world) / *peak;
}

namespace {

/// "FROM to TO", or one number where both are the same.
std::string range(double likely, double good, int digits) {
  const std::string from = fmt::format("{:.{}f}", likely, digits), to = fmt::format("{:.{}f}", good, digits);
  return from == to ? from : from + " to " + to;
}

}  // namespace

std::string speed_line(const Prediction& prediction) {
  const SimulatedStep &likely = prediction.step, &good = prediction.good;
  const double tera = prediction.flops() / static_cast<double>(prediction.world) / 1e12;
  return fmt::format("a step takes {} s: {} tokens/s per GPU, {} TFLOP/s in torchtitan's convention",
                     range(likely.seconds, good.seconds, 3),
                     range(prediction.tokens_per_second, prediction.tokens_per_second_at(good), 0),
                     range(tera / likely.seconds, tera / good.seconds, 0));
}

namespace {

/// Waits, and the time by purpose. Two columns where the GPU has likely and good rates.
void add_time(std::vector<std::string>& lines, const Prediction& prediction) {
  const SimulatedStep& step = prediction.step;
  const Waits waits = waits_of(step);
  lines.push_back(fmt::format("exposed communication: {:.1f} %; pipeline bubble: {:.1f} %",
                              100 * waits.communication / step.seconds, 100 * waits.bubble / step.seconds));
  const bool two = prediction.hardware.has_range();
  std::map<std::string, double> good;
  for (const auto& [seconds, purpose] : time_by_purpose(prediction.good)) good[purpose] = seconds;
  if (two) lines.push_back(fmt::format("  {:<32} {:>11} {:>8} {:>11}", "at rates that are", "likely", "", "good"));
  for (const auto& [seconds, purpose] : time_by_purpose(step)) {
    const double share = seconds / step.seconds;
    if (share < 0.0005) continue;
    lines.push_back(fmt::format("  {:<32} {:>8.1f} ms {:>6.1f} %", purpose, 1e3 * seconds, 100 * share) +
                    (two ? fmt::format(" {:>8.1f} ms", 1e3 * good[purpose]) : ""));
  }
}

}  // namespace

std::vector<std::string> prediction_lines(const Prediction& prediction, const JobConfig& config,
                                          const ModelDescription& model) {
  const Plan& plan = prediction.plans[prediction.peak];
  const double memory = prediction.hardware.memory_bytes, left = memory - prediction.needed_bytes();
  std::vector<std::string> lines{
      fmt::format("on {} ({:.1f} GiB): rank {} needs most, {:.1f} GiB reserved and {:.1f} GiB beside, at {}",
                  prediction.hardware.name, memory / kGiB, plan.request.place.rank, prediction.reserved_bytes() / kGiB,
                  kContextBytes / kGiB, plan.peak)};
  if (left >= 0) {
    lines.push_back(fmt::format("fits, with {:.1f} GiB to spare", left / kGiB));
  } else {
    lines.push_back(fmt::format("does not fit, by {:.1f} GiB", -left / kGiB));
    const MemoryQuestion question{config, plan.request.place, model.vocabulary, /*device_only=*/true,
                                  static_cast<int64_t>(memory - kContextBytes)};
    const std::vector<MemorySetting> settings = settings_that_fit(question);
    for (const MemorySetting& setting : settings) {
      const Prediction changed =
          predict(setting.config, model, prediction.world * setting.times_ranks, prediction.hardware);
      const Plan& fits = changed.plans[changed.peak];
      const int64_t on_host = fits.training_bytes(/*device_only=*/false) - fits.training_bytes(/*device_only=*/true);
      lines.push_back(fmt::format(
          "it would fit with {} ({:.1f} GiB{}, {:.0f} tokens/s per GPU)", setting.words,
          kReserved * static_cast<double>(setting.bytes) / kGiB,
          on_host > 0 ? fmt::format(" and {:.0f} GiB of host memory per GPU", static_cast<double>(on_host) / kGiB) : "",
          changed.tokens_per_second));
    }
    if (settings.empty()) lines.emplace_back("no setting that was tried would do; --search tries other layouts");
  }
  if (config.training.loss_chunks == 0) lines.push_back(loss_chunks_line(plan));
  lines.push_back(speed_line(prediction));
  const std::optional<double> mfu = prediction.mfu(prediction.step), best = prediction.mfu(prediction.good);
  lines.push_back(fmt::format("model FLOPs of a step: {:.3g}; MFU: {}", prediction.flops(),
                              mfu ? range(100 * *mfu, 100 * *best, 1) + " %" : "n/a"));
  add_time(lines, prediction);
  return lines;
}

nlohmann::json prediction_json(const Prediction& prediction, const Plan& plan) {
  nlohmann::json json{{"gpu", prediction.hardware.name},
                      {"ranks", prediction.world},
                      {"rank", plan.request.place.rank},
                      {"parameters", plan.parameter_count},
                      {"reserved_bytes", prediction.reserved_bytes()},
                      {"needed_bytes", prediction.needed_bytes()},
                      {"fits", prediction.fits()},
                      {"peak_rank", prediction.plans[prediction.peak].request.place.rank},
                      {"loss_chunks", plan.request.training.loss_chunks},
                      {"peak", prediction.plans[prediction.peak].peak},
                      {"step_seconds", prediction.step.seconds},
                      {"tokens_per_second_per_gpu", prediction.tokens_per_second},
                      {"flops_per_step", prediction.flops()}};
  if (const std::optional<double> mfu = prediction.mfu(prediction.step)) json["mfu"] = *mfu;
  const Waits waits = waits_of(prediction.step);
  json["exposed_communication_seconds"] = waits.communication;
  json["pipeline_bubble_seconds"] = waits.bubble;
  for (const MemoryPurpose& purpose : plan.memory) {
    json["memory"].push_back({{"purpose", purpose.name}, {"bytes", purpose.bytes}, {"on_host", purpose.on_host}});
  }
  for (const auto& [seconds, purpose] : time_by_purpose(prediction.step)) json["seconds"][purpose] = seconds;
  json["good"] = {{"step_seconds", prediction.good.seconds},
                  {"tokens_per_second_per_gpu", prediction.tokens_per_second_at(prediction.good)}};
  for (const auto& [seconds, purpose] : time_by_purpose(prediction.good)) json["good"]["seconds"][purpose] = seconds;
  for (const CommunicatorTraffic& traffic : plan.traffic) {
    for (size_t kind = 0; kind < kCollectives; ++kind) {
      if (traffic.table[kind].calls == 0) continue;
      json["traffic"].push_back({{"communicator", traffic.communicator},
                                 {"ranks", traffic.ranks},
                                 {"collective", name(static_cast<Collective>(kind))},
                                 {"calls", traffic.table[kind].calls},
                                 {"bytes", traffic.table[kind].bytes}});
    }
  }
  return json;
}

// ---- the search

namespace {

struct Candidate {
  JobConfig config;
  std::string words;
  double tokens_per_second = 0;
  double bytes = 0;
};

// A person chooses from so many layouts. The number also bounds how many pipelines are tried with other schedules.
constexpr size_t kShown = 5;
constexpr int64_t kMostSamples = 8;  // of a local batch and stage: bounds the number of candidates

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> all;
  for (int64_t value = 1; value <= most; value *= 2) all.push_back(value);
  return all;
}

/// Describes and predicts a layout; none if it is invalid or does not fit.
std::optional<Candidate> tried(const JobConfig& config, const ModelDescription& model, int64_t world,
                               const Hardware& hardware) {
  try {
    if (!world_problems(config, {}, world).empty() || !check_degrees(&model, config, {}).empty()) return std::nullopt;
    Prediction prediction = predict_memory(config, model, world, hardware);
    if (!prediction.fits()) return std::nullopt;
    predict_time(prediction, config, model, /*keep_events=*/false);
    const DeviceMesh& mesh = prediction.plans[0].request.place.mesh;
    const std::string pipeline =
        mesh.size(MeshAxis::pp) > 1
            ? fmt::format(", pipeline {} ({})", mesh.size(MeshAxis::pp), config.parallelism.pipeline_parallel_schedule)
            : "";
    const std::string replicas =
        mesh.size(MeshAxis::dp_replicate) > 1 ? fmt::format("{} replicas, ", mesh.size(MeshAxis::dp_replicate)) : "";
    return Candidate{config,
                     fmt::format("{}shards {}, tensor {}{}, recompute {}, local batch {}", replicas,
                                 mesh.size(MeshAxis::dp_shard), mesh.size(MeshAxis::tp), pipeline,
                                 config.activation_checkpoint.mode, config.training.local_batch_size),
                     prediction.tokens_per_second, prediction.needed_bytes()};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::string> search_lines(const JobConfig& config, const ModelDescription& model, int64_t world,
                                      const Hardware& hardware) {
  const BatchPlan now = make_batch_plan(config, {make_mesh(config, world), 0});
  const int64_t context = config.parallelism.context_parallel_degree;
  std::vector<Candidate> found;
  for (const int64_t tensor : powers_of_two(std::min(hardware.gpus_per_host, world))) {
    for (const int64_t pipeline : powers_of_two(std::min<int64_t>(16, model.layers))) {
      const int64_t data = world / (tensor * pipeline * context);
      if (data == 0 || world % (tensor * pipeline * context) != 0 || now.global_batch() % data != 0) continue;
      for (const int64_t replicas : {int64_t{1}, data / std::max<int64_t>(1, hardware.gpus_per_host / tensor)}) {
        if (replicas < 1 || data % replicas != 0) continue;
        for (const char* recompute : {"none", "selective", "full"}) {
          const int64_t most = std::min(now.global_batch() / data, kMostSamples * pipeline);
          for (const int64_t local : powers_of_two(most)) {
            if (local % pipeline != 0) continue;
            JobConfig trial = config;
            trial.parallelism.tensor_parallel_degree = tensor;
            trial.parallelism.pipeline_parallel_degree = pipeline;
            trial.parallelism.data_parallel_replicate_degree = replicas;
            trial.parallelism.data_parallel_shard_degree = data / replicas;
            trial.activation_checkpoint.mode = recompute;
            trial.training.local_batch_size = local;
            trial.training.global_batch_size = now.global_batch();
            if (const auto candidate = tried(trial, model, world, hardware)) found.push_back(*candidate);
          }
        }
      }
    }
  }
  const auto sort = [&] {
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.tokens_per_second > b.tokens_per_second; });
  };
  sort();
  // Other schedules are tried for the fastest pipelines only: with all layouts they would multiply the candidates.
  std::vector<JobConfig> pipelines;
  for (const Candidate& candidate : found) {
    const bool is_pipeline = candidate.config.parallelism.pipeline_parallel_degree > 1;
    if (is_pipeline && pipelines.size() < kShown) pipelines.push_back(candidate.config);
  }
  for (JobConfig& trial : pipelines) {
    for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"}) {
      if (schedule == config.parallelism.pipeline_parallel_schedule) continue;
      trial.parallelism.pipeline_parallel_schedule = schedule;
      if (const auto candidate = tried(trial, model, world, hardware)) found.push_back(*candidate);
    }
  }
  sort();
  const auto same = [](const Candidate& a, const Candidate& b) { return a.words == b.words; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  if (found.size() > kShown) found.resize(kShown);
  std::vector<std::string> lines;
  for (const Candidate& candidate : found) {
    lines.push_back(fmt::format("  {:>7.0f} tokens/s per GPU, {:>5.1f} GiB: {}", candidate.tokens_per_second,
                                candidate.bytes / kGiB, candidate.words));
  }
  if (lines.empty()) lines.emplace_back("  none fits");
  return lines;
}

}  // namespace titan
