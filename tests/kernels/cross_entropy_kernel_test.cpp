#include <algorithm>
#include <cmath>
#include <random>

#include "cases.h"

namespace titan {
namespace {

constexpr int64_t kIgnored = -100;

struct Shape {
  KernelType type;
  int64_t rows, vocab_size;
  bool gradient;
  size_t offset;
  bool scale_in_memory = false;
};

std::string run_rows(KernelMachine& machine, const Shape& s) {
  const auto count = static_cast<size_t>(s.rows * s.vocab_size);
  const auto logits = numbers(count, 1, s.type, 4);
  std::mt19937_64 random(static_cast<uint64_t>(s.vocab_size));
  std::vector<int64_t> labels;
  int64_t counted = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    // The first token, the last, an ignored label, and any.
    const int64_t choices[] = {0, s.vocab_size - 1, kIgnored,
                               static_cast<int64_t>(random() % static_cast<uint64_t>(s.vocab_size))};
    labels.push_back(choices[row % 4]);
    counted += labels.back() != kIgnored;
  }
  Numbers in(machine, s.type, logits, s.offset);
  MachineArray<int64_t> labels_in(machine, labels);
  MachineArray<float> losses(machine, static_cast<size_t>(s.rows));
  CrossEntropyRows a;
  a.type = s.type;
  a.rows = s.rows;
  a.vocab_size = s.vocab_size;
  a.logits = in.data();
  a.labels = labels_in.data();
  a.ignored = kIgnored;
  MachineArray<float> scale(machine, std::vector<float>{0.25f});
  a.scale = s.scale_in_memory ? NAN : 0.25f;
  if (s.scale_in_memory) a.scale_at = scale.data();
  a.gradient = s.gradient;
  a.losses = losses.data();
  std::vector<double> loss, gradient = logits;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto begin = logits.begin() + row * s.vocab_size;
    const double largest = *std::max_element(begin, begin + s.vocab_size);
    double sum = 0;
    for (int64_t i = 0; i < s.vocab_size; ++i) sum += std::exp(begin[i] - largest);
    const int64_t label = labels[static_cast<size_t>(row)];
    loss.push_back(label == kIgnored ? 0 : largest + std::log(sum) - begin[label]);
    for (int64_t i = 0; i < s.vocab_size && s.gradient; ++i) {
      const double probability = std::exp(begin[i] - largest) / sum;
      gradient[static_cast<size_t>(row * s.vocab_size + i)] =
          label == kIgnored ? 0 : 0.25 * (probability - (i == label ? 1 : 0));
    }
  }
  Findings findings;
  machine.launch(&Kernels::cross_entropy, a);
  findings.compare_traffic(machine, traffic(a, counted));
  findings.compare("loss", losses, loss, 3e-6);
  findings.compare("gradient", in, gradient, s.gradient ? bound_of(s.type) : 0, 1e-3);
  return findings.text();
}

/// Rows with an infinite logit, −∞ for all but one token, and a label outside of the vocabulary.
std::string run_extremes(KernelMachine& machine) {
  const std::vector<double> logits{1, INFINITY, 0, 0, -INFINITY, -INFINITY, 5, -INFINITY, 1, 2, 3, 4, 1, NAN, 3, 4};
  Numbers in(machine, KernelType::fp32, logits);
  MachineArray<int64_t> labels(machine, std::vector<int64_t>{0, 2, 4, 0});
  MachineArray<float> losses(machine, 4);
  CrossEntropyRows a;
  a.rows = 4;
  a.vocab_size = 4;
  a.logits = in.data();
  a.labels = labels.data();
  a.ignored = kIgnored;
  a.losses = losses.data();
  machine.launch(&Kernels::cross_entropy, a);
  Findings findings;
  if (std::isfinite(losses[0])) findings.say("an infinite logit makes a finite loss");
  if (losses[1] != 0) findings.say("a certain token has a loss");
  for (size_t i : {4, 5, 6, 7})
    if (in[i] != 0) findings.say("a certain token has a gradient");
  if (!std::isnan(losses[2])) findings.say("a label outside of the vocabulary has a loss that is a number");
  if (!std::isnan(losses[3])) findings.say("a NaN logit makes a loss that is a number");
  return findings.text();
}

struct Part {
  KernelType type;
  int64_t rows, vocab_size, first_token;
  size_t offset = 0;
  bool scale_in_memory = false;
};

/// Sums and gradient of the tokens that one rank has, of a vocabulary of three times as many.
std::string run_part(KernelMachine& machine, const Part& p) {
  const auto count = static_cast<size_t>(p.rows * p.vocab_size), rows = static_cast<size_t>(p.rows);
  const auto logits = numbers(count, 1, p.type, 4);
  std::vector<int64_t> labels;
  int64_t here = 0, counted = 0;
  for (int64_t row = 0; row < p.rows; ++row) {
    // Of a rank before, this rank's first and last, of a rank behind, and an ignored label.
    const int64_t choices[] = {p.first_token - 1, p.first_token, p.first_token + p.vocab_size - 1,
                               p.first_token + p.vocab_size, kIgnored};
    labels.push_back(choices[row % 5]);
    here += labels.back() >= p.first_token && labels.back() < p.first_token + p.vocab_size;
    counted += labels.back() != kIgnored;
  }
  Numbers in(machine, p.type, logits, p.offset);
  MachineArray<int64_t> labels_in(machine, labels);
  MachineArray<float> largest(machine, rows), sums(machine, rows), targets(machine, rows);
  const VocabularySums a{p.type,           p.rows,         p.vocab_size, p.first_token, in.data(),
                         labels_in.data(), largest.data(), sums.data(),  targets.data()};
  std::vector<double> expected_largest, expected_sums, expected_targets;
  for (int64_t row = 0; row < p.rows; ++row) {
    const auto begin = logits.begin() + row * p.vocab_size;
    expected_largest.push_back(*std::max_element(begin, begin + p.vocab_size));
    double sum = 0;
    for (int64_t i = 0; i < p.vocab_size; ++i) sum += std::exp(begin[i] - expected_largest.back());
    expected_sums.push_back(sum);
    const int64_t own = labels[static_cast<size_t>(row)] - p.first_token;
    expected_targets.push_back(own >= 0 && own < p.vocab_size ? begin[own] : 0);
  }
  Findings findings;
  machine.launch(&Kernels::vocabulary_sums, a);
  findings.compare_traffic(machine, traffic(a, here));
  findings.compare("largest", largest, expected_largest, 0);
  findings.compare("sum", sums, expected_sums, 3e-6);
  findings.compare("target", targets, expected_targets, 0);
  // As if the other ranks had a larger logit and twice the sum.
  std::vector<float> all_largest(rows), all_sums(rows);
  std::vector<double> gradient;
  for (size_t row = 0; row < rows; ++row) {
    all_largest[row] = largest[row] + 0.5f;
    all_sums[row] = sums[row] * 3;
    for (int64_t i = 0; i < p.vocab_size; ++i) {
      const double probability = std::exp(logits[row * static_cast<size_t>(p.vocab_size) + static_cast<size_t>(i)] -
                                          double{all_largest[row]}) /
                                 double{all_sums[row]};
      const bool is_label = labels[row] - p.first_token == i;
      gradient.push_back(labels[row] == kIgnored ? 0 : 0.25 * (probability - (is_label ? 1 : 0)));
    }
  }
  MachineArray<float> scale(machine, std::vector<float>{0.25f});
  VocabularyGradient b{p.type, p.rows, p.vocab_size, p.first_token, in.data(), labels_in.data(), kIgnored};
  b.scale = p.scale_in_memory ? NAN : 0.25f;
  b.scale_at = p.scale_in_memory ? scale.data() : nullptr;
  MachineArray<float> all_largest_in(machine, all_largest), all_sums_in(machine, all_sums);
  b.largest = all_largest_in.data();
  b.sums = all_sums_in.data();
  machine.launch(&Kernels::vocabulary_gradient, b);
  findings.compare_traffic(machine, traffic(b, counted));
  findings.compare("gradient", in, gradient, bound_of(p.type), 1e-3);
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"cross_entropy_extremes", run_extremes}};
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (const Part& p : {Part{type, 5, 59, 59}, Part{type, 6, 512, 512, 0, true}, Part{type, 5, 4099, 4099},
                          Part{type, 5, 520, 520, 1}, Part{type, 3, 1, 1}}) {
      result.push_back({std::string("vocabulary_") + name(type) + "_" + std::to_string(p.vocab_size) +
                            (p.offset ? "_unaligned" : ""),
                        [p](KernelMachine& machine) { return run_part(machine, p); }});
    }
    std::vector<Shape> shapes;
    for (int64_t vocab_size : {1, 2, 59, 511, 512, 4099, 8192, 9000}) shapes.push_back({type, 5, vocab_size, true, 0});
    shapes.push_back({type, 3, 2256, false, 0});
    shapes.push_back({type, 4, 520, true, 1});
    shapes.push_back({type, 4, 333, true, 0, true});
    for (const Shape& s : shapes) {
      result.push_back({std::string("cross_entropy_") + name(type) + "_" + std::to_string(s.vocab_size) +
                            (s.gradient ? "" : "_loss_only") + (s.offset ? "_unaligned" : ""),
                        [s](KernelMachine& machine) { return run_rows(machine, s); }});
    }
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
