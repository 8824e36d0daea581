#include "titan/estimate/planned_job.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "titan/base/text.h"
#include "titan/corpus/vocabulary.h"
#include "titan/estimate/memory_settings.h"
#include "titan/estimate/plan_report.h"
#include "titan/job/job.h"
#include "titan/job/pipeline_job.h"

namespace titan {
namespace {

/// The vocabulary of some flavors is the tokenizer's; without the tokenizer's file the smallest possible one is used.
ModelDescription describe_planned_model(const JobConfig& config) {
  const std::string place = tokenizer_location(config);
  if (std::filesystem::exists(place)) return describe_model(config, open_vocabulary(place)->vocabulary_size());
  ModelDescription model = describe_model(config, 1);
  if (model.vocabulary_is_tokenizers) {
    std::cerr << fmt::format(
        "the tokenizer {} does not exist: the size of the vocabulary comes from it, and this plan assumes {}\n", place,
        model.vocabulary);
  }
  return model;
}

std::string size_words(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// One line per unit; consecutive equal units share a line.
std::vector<std::string> unit_table(const Plan& plan) {
  const auto numbers = [](const std::string& a, const std::string& b, const std::string& c, const std::string& d) {
    return fmt::format(" {:>12} {:>12} {:>12} {:>12}", a, b, c, d);
  };
  const auto line = [](const std::string& unit, const std::string& rest) {
    return fmt::format("  {:<26}", unit) + rest;
  };
  std::vector<std::string> lines{line("by unit", numbers("parameters", "gradients", "optimizer", "activations"))};
  std::string last, first_name;
  for (const UnitPlan& unit : plan.units) {
    int64_t owned = 0, gradients = 0, moments = 0;
    for (size_t group : unit.groups) {
      const WeightGroupPlan& weights = plan.groups[group];
      if (plan.units[weights.reduce_after].name != unit.name) continue;
      owned += weights.shard_numel;
      gradients += weights.gradient_bytes();
      moments += plan.moment_bytes(weights);
    }
    const std::string text = numbers(size_words(owned * size_of(plan.request.training.dtype)), size_words(gradients),
                                     size_words(moments), size_words(unit.saved_bytes));
    if (text == last) {
      lines.back() = line(first_name + " to " + unit.name, text);
      continue;
    }
    last = text;
    first_name = unit.name;
    lines.push_back(line(unit.name, text));
  }
  return lines;
}

}  // namespace

std::string loss_chunks_line(const Plan& plan) {
  return fmt::format("training.loss_chunks = 0: parts of the logits: {}", plan.request.training.loss_chunks);
}

PlannedJob plan_job(const JobConfig& config, int64_t world, int64_t rank, bool on_gpu,
                    const std::optional<int64_t>& room) {
  const MeshPlace place{make_mesh(config, world), rank};
  ModelDescription model = describe_planned_model(config);
  PlanRequest request = make_plan_request(config, place, on_gpu);
  add_pipeline(request, config, model);
  request.training.loss_chunks = choose_loss_chunks(config, model, place.mesh, room);
  Plan plan = make_plan(model, request);
  return {place, std::move(model), std::move(plan)};
}

std::vector<std::string> estimate_lines(const JobConfig& config, const PlannedJob& job, bool on_gpu,
                                        const std::optional<int64_t>& room_bytes, const std::string& room_words) {
  std::vector<std::string> lines{fmt::format("memory of rank {} of {}, {} {}, predicted by purpose:", job.place.rank,
                                             job.place.mesh.world(), job.model.name, job.model.flavor)};
  const auto tokens = static_cast<double>(job.plan.request.tokens_per_step());
  lines.push_back(fmt::format("{} parameters; {:.3g} model FLOPs per step", with_thousands(job.plan.parameter_count),
                              tokens * static_cast<double>(job.plan.flops_per_token)));
  const auto append = [&](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (config.training.loss_chunks == 0) lines.push_back(loss_chunks_line(job.plan));
  append(memory_table(job.plan));
  append(unit_table(job.plan));
  const int64_t peak = job.plan.predicted_bytes(on_gpu);
  lines.push_back(fmt::format("Peak of tensors: {}; this machine's {}", size_words(peak), room_words));
  if (!room_bytes || peak <= *room_bytes) return lines;
  const MemoryQuestion question{config, job.place, job.model.vocabulary, on_gpu, room_bytes};
  for (const MemorySetting& setting : settings_that_fit(question)) {
    lines.push_back(fmt::format("it would fit with {} ({})", setting.words, size_words(setting.bytes)));
  }
  return lines;
}

}  // namespace titan
