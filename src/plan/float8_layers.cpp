#include "titan/plan/float8_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr int64_t kTile = 16;  // cuBLAS refuses float8 products of other dimensions than its multiples
constexpr std::string_view kWeight = ".weight";

/// A linear layer and its weight; a tied output layer uses another layer's weight.
struct Linear {
  std::string layer;
  const UnitDescription* unit;
  std::vector<int64_t> shape;
  std::optional<int64_t> cut;  // the dimension that tensor parallelism shards
};

std::vector<Linear> linears_of(const ModelDescription& model) {
  std::vector<Linear> linears;
  for (const UnitDescription& unit : model.units) {
    if (unit.role == UnitRole::embedding) continue;
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.shape.size() != 2) continue;
      std::string layer =
          spec.name.ends_with(kWeight) ? spec.name.substr(0, spec.name.size() - kWeight.size()) : spec.name;
      linears.push_back({std::move(layer), &unit, spec.shape, spec.split_over(MeshAxis::tp)});
    }
    if (unit.role == UnitRole::head && !unit.borrowed.empty()) {
      linears.push_back({"output", &unit, {model.vocabulary, model.dim}, 0});
    }
  }
  return linears;
}

/// torchao's thresholds below which a float8 product is no faster, casts included.
bool is_small(const Linear& linear, Float8Recipe recipe) {
  const int64_t n = linear.shape[0], k = linear.shape[1];
  if (recipe == Float8Recipe::tensorwise) return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

bool leaves_small(const LinearFloat8Section& section) {
  const std::vector<std::string>& filters = section.filter_fqns;
  return std::find(filters.begin(), filters.end(), kSmallLayersFilter) != filters.end();
}

std::string reason_against(const Linear& linear, const LinearFloat8Section& section, int64_t tensor_ranks,
                           const std::vector<std::string>& keep_fp32) {
  for (const std::string& filter : name_filters(section)) {
    if (linear.layer.find(filter) != std::string::npos) return fmt::format("named by filter_fqns \"{}\"", filter);
  }
  if (linear.unit->role == UnitRole::head) return "the output layer is computed together with the loss";
  if (std::find(keep_fp32.begin(), keep_fp32.end(), linear.unit->name) != keep_fp32.end()) {
    return "its unit is kept in float32 by training.keep_fp32";
  }
  std::vector<int64_t> shape = linear.shape;
  if (shape[0] % kTile != 0 || shape[1] % kTile != 0) return fmt::format("not multiples of {}", kTile);
  if (linear.cut) shape[static_cast<size_t>(*linear.cut)] /= tensor_ranks;
  if (shape[0] % kTile != 0 || shape[1] % kTile != 0) {
    return fmt::format("not multiples of {} where {} ranks share it: [{}, {}] each", kTile, tensor_ranks, shape[0],
                       shape[1]);
  }
  if (leaves_small(section) && is_small(linear, recipe_of(section))) return "small (auto_filter_small_kn)";
  return {};
}

/// "layers.7.attention.wq" → 7 and "attention.wq"; other names have no number.
struct NumberedName {
  std::optional<int64_t> number;
  std::string rest;
};

NumberedName numbered(const std::string& layer) {
  const std::vector<std::string> parts = split(layer, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const bool digits = !parts[i].empty() && parts[i].find_first_not_of("0123456789") == std::string::npos;
    if (!digits) continue;
    const std::vector<std::string> rest(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1, parts.end());
    return {std::stoll(parts[i]), join(rest, ".")};
  }
  return {std::nullopt, layer};
}

/// Formats numbers as "0-3, 5".
std::string ranges(const std::vector<int64_t>& numbers) {
  std::vector<std::string> words;
  for (size_t first = 0, end = 0; first < numbers.size(); first = end) {
    for (end = first + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    words.push_back(end - first == 1 ? std::to_string(numbers[first])
                                     : fmt::format("{}-{}", numbers[first], numbers[end - 1]));
  }
  return join(words, ", ");
}

/// Choices that differ only in the layer number, merged into one line.
struct Alike {
  const LinearChoice* example;
  std::string rest;
  std::vector<int64_t> numbers;

  bool takes(const LinearChoice& choice, const std::string& other_rest) const {
    return rest == other_rest && example->converted == choice.converted && example->reason == choice.reason &&
           example->outputs == choice.outputs && example->inputs == choice.inputs;
  }
  std::string line() const {
    const std::string of = numbers.empty() ? "" : fmt::format(" of layers {}", ranges(numbers));
    return fmt::format("  {:<9} {} [{}, {}]{}{}", example->converted ? "float8" : "unchanged", rest, example->outputs,
                       example->inputs, of, example->reason.empty() ? "" : ": " + example->reason);
  }
};

}  // namespace

std::vector<std::string> name_filters(const LinearFloat8Section& section) {
  std::vector<std::string> filters = section.filter_fqns;
  std::erase(filters, kSmallLayersFilter);
  return filters;
}

std::vector<LinearChoice> choose_float8_layers(const ModelDescription& model, const LinearFloat8Section& section,
                                               int64_t tensor_ranks, const std::vector<std::string>& keep_fp32) {
  std::vector<LinearChoice> choices;
  for (const Linear& linear : linears_of(model)) {
    std::string reason = reason_against(linear, section, tensor_ranks, keep_fp32);
    const bool converted = reason.empty();
    choices.push_back({linear.layer, linear.shape[0], linear.shape[1], converted, std::move(reason)});
  }
  return choices;
}

std::vector<std::string> idle_filters(const ModelDescription& model, const std::vector<std::string>& filters) {
  const std::vector<Linear> linears = linears_of(model);
  std::vector<std::string> idle;
  for (const std::string& filter : filters) {
    const bool matches = std::any_of(linears.begin(), linears.end(), [&](const Linear& linear) {
      return linear.layer.find(filter) != std::string::npos;
    });
    if (!matches) idle.push_back(filter);
  }
  return idle;
}

bool converts_any(const std::vector<LinearChoice>& choices) {
  return std::any_of(choices.begin(), choices.end(), [](const LinearChoice& choice) { return choice.converted; });
}

std::optional<std::string> idle_float8_words(const LinearFloat8Section& section,
                                             const std::vector<LinearChoice>& choices) {
  if (converts_any(choices)) return std::nullopt;
  std::vector<std::pair<std::string, int64_t>> reasons;
  for (const LinearChoice& choice : choices) {
    const auto known =
        std::find_if(reasons.begin(), reasons.end(), [&](const auto& reason) { return reason.first == choice.reason; });
    if (known == reasons.end()) {
      reasons.emplace_back(choice.reason, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> words;
  for (const auto& [reason, layers] : reasons) words.push_back(fmt::format("{}: {}", layers, reason));
  const bool filters = !section.filter_fqns.empty();
  return fmt::format(
      "float8 is on (model.converters), but none of the {} linear layers is converted, so nothing runs in float8 ({}); "
      "{}take \"quantize.linear.float8\" out of model.converters",
      choices.size(), join(words, "; "), filters ? "leave layers over in quantize.linear.float8.filter_fqns, or " : "");
}

std::vector<std::string> float8_lines(const LinearFloat8Section& section, const std::vector<LinearChoice>& choices) {
  const auto converted = std::count_if(choices.begin(), choices.end(), [](const auto& one) { return one.converted; });
  std::vector<std::string> lines;
  if (converted > 0) {
    lines.push_back(recipe_of(section) == Float8Recipe::tensorwise
                        ? "Float8 tensorwise scaled training active"
                        : fmt::format("Float8 training active with recipe {}", name(recipe_of(section))));
  }
  const bool emulates = converted > 0 && section.emulate;
  lines.push_back(fmt::format("{} of {} linear layers are converted to float8{}", converted, choices.size(),
                              emulates ? ", emulated: operands are rounded, products are ordinary" : ""));
  std::vector<Alike> kinds;
  for (const LinearChoice& choice : choices) {
    const auto [number, rest] = numbered(choice.layer);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Alike& k) { return k.takes(choice, rest); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {&choice, rest, {}});
    if (number) kind->numbers.push_back(*number);
  }
  for (const Alike& kind : kinds) lines.push_back(kind.line());
  return lines;
}

}  // namespace titan
