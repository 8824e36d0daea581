#include "titan/config/problem.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "titan/base/text.h"
#include "titan/config/schema.h"

namespace titan {

std::string Place::to_string() const {
  switch (kind) {
    case Kind::file:
      return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
    case Kind::command_line:
      return "command line: " + source;
    case Kind::default_value:
      return "default of " + source;
  }
  return source;
}

void Origins::set(const std::string& key, Place place, std::string spelling) {
  origins_.insert_or_assign(key, Origin{std::move(place), std::move(spelling)});
}

Place Origins::place(std::string_view key) const {
  auto found = origins_.find(key);
  if (found == origins_.end()) return Place{Place::Kind::default_value, std::string(key)};
  return found->second.place;
}

std::string Origins::spelling(std::string_view key) const {
  auto found = origins_.find(key);
  return found == origins_.end() ? std::string(key) : found->second.spelling;
}

Problem Origins::problem(std::string_view key, std::string what, std::string remedy) const {
  return {place(key), std::string(key), std::move(what), std::move(remedy), Severity::error};
}

Problem Origins::note(std::string_view key, std::string what, std::string remedy) const {
  return {place(key), std::string(key), std::move(what), std::move(remedy), Severity::note};
}

void sort_by_place(std::vector<Problem>& problems) {
  auto rank = [](const Problem& problem) {
    const Place::Kind kind = problem.where.kind;
    const int order = kind == Place::Kind::file ? 0 : kind == Place::Kind::command_line ? 1 : 2;
    return std::tuple(order, problem.where.line, problem.where.column);
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const Problem& a, const Problem& b) { return rank(a) < rank(b); });
}

std::string format_problem(const Problem& problem) {
  const std::string where = problem.where.to_string();
  const std::string text = where.empty() ? problem.what : where + ": " + problem.what;
  return printable(problem.remedy.empty() ? text : text + "; " + problem.remedy);
}

std::string format_problems(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) text += format_problem(problem) + "\n";
  return text;
}

// Finds the option that a mistyped key most likely meant.

namespace {

std::string_view leaf_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }
std::string_view section_of(std::string_view key) {
  size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Edit distance from a typed key to a known one. A wrong or missing section counts as one edit, because keys of moved
/// options are usually mistyped that way.
size_t key_distance(std::string_view typed, std::string_view known) {
  constexpr size_t far = 1000;
  size_t limit = std::max<size_t>(3, typed.size() / 3);
  if (leaf_of(typed) == leaf_of(known)) return section_of(typed) == section_of(known) ? 0 : 1;
  if (section_of(typed).empty()) {
    const size_t distance = edit_distance(typed, leaf_of(known));
    if (distance <= std::max<size_t>(1, typed.size() / 3)) return distance + 1;
  }
  size_t length_gap = typed.size() > known.size() ? typed.size() - known.size() : known.size() - typed.size();
  if (length_gap > limit) return far;
  size_t distance = edit_distance(typed, known);
  return distance <= limit ? distance : far;
}

/// Names of other programs, none of which resembles the option that is meant. A name without a dot stands for itself
/// and for the last part of a key.
struct OtherName {
  std::string_view name, option;
};
constexpr std::array kOtherNames{OtherName{"model.dtype", "training.dtype"},
                                 OtherName{"model.torch_dtype", "training.dtype"},
                                 OtherName{"epochs", "training.steps"},
                                 OtherName{"num_epochs", "training.steps"},
                                 OtherName{"num_train_epochs", "training.steps"},
                                 OtherName{"max_steps", "training.steps"},
                                 OtherName{"gradient_accumulation_steps", "training.global_batch_size"},
                                 OtherName{"grad_accum_steps", "training.global_batch_size"},
                                 OtherName{"per_device_train_batch_size", "training.local_batch_size"},
                                 OtherName{"grad_clip", "training.max_norm"},
                                 OtherName{"clip_grad", "training.max_norm"},
                                 OtherName{"max_grad_norm", "training.max_norm"},
                                 OtherName{"gradient_clip_val", "training.max_norm"},
                                 OtherName{"learning_rate", "optimizer.lr"},
                                 OtherName{"last_save_in_safetensors_format", "checkpoint.last_save_in_hf"},
                                 OtherName{"tp", "parallelism.tensor_parallel_degree"},
                                 OtherName{"pp", "parallelism.pipeline_parallel_degree"},
                                 OtherName{"cp", "parallelism.context_parallel_degree"},
                                 OtherName{"dp", "parallelism.data_parallel_shard_degree"},
                                 OtherName{"dp_shard", "parallelism.data_parallel_shard_degree"},
                                 OtherName{"dp_replicate", "parallelism.data_parallel_replicate_degree"},
                                 OtherName{"lr_scheduler.type", "lr_scheduler.decay_type"},
                                 OtherName{"lr_scheduler_type", "lr_scheduler.decay_type"}};

/// The option that `typed` means in another program; empty: unknown.
std::string meant_by(std::string_view typed) {
  for (const auto& [name, option] : kOtherNames) {
    const bool is_leaf = name.find('.') == std::string_view::npos;
    if (typed == name || (is_leaf && leaf_of(typed) == name)) return std::string(option);
  }
  return {};
}

std::vector<std::string> best_of(std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked, size_t limit) {
  std::stable_sort(ranked.begin(), ranked.end());
  std::vector<std::string> best;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) best.push_back(std::get<3>(ranked[i]));
  return best;
}

}  // namespace

std::vector<std::string> Schema::suggest(std::string_view key, size_t limit) const {
  if (std::string known = meant_by(key); find(known) != nullptr) return {std::move(known)};
  std::vector<std::tuple<size_t, size_t, size_t, std::string>> ranked;
  auto consider = [&](const std::string& known, size_t former) {
    size_t distance = key_distance(key, known);
    // Of equal distances: a typo is rarely in the first letters, and a former spelling should not be learned anew.
    if (distance < 1000)
      ranked.emplace_back(distance, 1000 - std::min<size_t>(1000, common_prefix(key, known)), former, known);
  };
  for (const Option& option : options_) consider(option.key, 0);
  for (const Alias& alias : aliases_) consider(alias.key, 1);
  return best_of(std::move(ranked), limit);
}

std::vector<std::string> Schema::suggest_section(std::string_view name) const {
  std::vector<std::string> names;
  for (const SectionInfo& section : sections_) names.push_back(section.name);
  return nearest(name, names, 1);
}

}  // namespace titan
