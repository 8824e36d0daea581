#include <algorithm>
#include <random>

#include "cases.h"

namespace titan {
namespace {

constexpr int64_t kIgnored = -100;

struct Shape {
  KernelType type;
  int64_t rows, words;
  bool gradient;
  size_t offset;
};

std::string run_rows(const Shape& s) {
  const auto count = static_cast<size_t>(s.rows * s.words);
  const auto logits = numbers(count, 1, s.type, 4);
  std::mt19937_64 random(static_cast<uint64_t>(s.words));
  std::vector<int64_t> labels;
  int64_t counted = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    // The first word, the last, one nobody asks for, and any.
    const int64_t choices[] = {0, s.words - 1, kIgnored,
                               static_cast<int64_t>(random() % static_cast<uint64_t>(s.words))};
    labels.push_back(choices[row % 4]);
    counted += labels.back() != kIgnored;
  }
  Numbers in(s.type, logits, s.offset);
  const cuda_on_host::Buffer<int64_t> labels_in(labels);
  cuda_on_host::Buffer<float> losses(static_cast<size_t>(s.rows));
  CrossEntropyRows a;
  a.type = s.type;
  a.rows = s.rows;
  a.words = s.words;
  a.logits = in.data();
  a.labels = labels_in.data();
  a.ignored = kIgnored;
  a.scale = 0.25f;
  a.gradient = s.gradient;
  a.losses = losses.data();
  std::vector<double> loss, gradient = logits;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto begin = logits.begin() + row * s.words;
    const double largest = *std::max_element(begin, begin + s.words);
    double sum = 0;
    for (int64_t i = 0; i < s.words; ++i) sum += std::exp(begin[i] - largest);
    const int64_t label = labels[static_cast<size_t>(row)];
    loss.push_back(label == kIgnored ? 0 : largest + std::log(sum) - begin[label]);
    for (int64_t i = 0; i < s.words && s.gradient; ++i) {
      const double probability = std::exp(begin[i] - largest) / sum;
      gradient[static_cast<size_t>(row * s.words + i)] =
          label == kIgnored ? 0 : 0.25 * (probability - (i == label ? 1 : 0));
    }
  }
  Findings findings;
  cuda_on_host::reset_counted();
  host_kernels().cross_entropy(a, nullptr);
  findings.compare_traffic(traffic(a, counted));
  findings.compare("loss", losses, loss, 3e-6);
  findings.compare("gradient", in, gradient, s.gradient ? bound_of(s.type) : 0, 1e-3);
  return findings.text();
}

/// Rows with an infinite logit, −∞ for all but one word, and a label outside of the vocabulary.
std::string run_extremes() {
  const std::vector<double> logits{1, INFINITY, 0, 0, -INFINITY, -INFINITY, 5, -INFINITY, 1, 2, 3, 4, 1, NAN, 3, 4};
  Numbers in(KernelType::fp32, logits);
  const cuda_on_host::Buffer<int64_t> labels(std::vector<int64_t>{0, 2, 4, 0});
  cuda_on_host::Buffer<float> losses(4);
  CrossEntropyRows a;
  a.rows = 4;
  a.words = 4;
  a.logits = in.data();
  a.labels = labels.data();
  a.ignored = kIgnored;
  a.losses = losses.data();
  host_kernels().cross_entropy(a, nullptr);
  Findings findings;
  if (std::isfinite(losses[0])) findings.say("an infinite logit makes a finite loss");
  if (losses[1] != 0) findings.say("a certain word has a loss");
  for (size_t i : {4, 5, 6, 7})
    if (in[i] != 0) findings.say("a certain word has a gradient");
  if (!std::isnan(losses[2])) findings.say("a label outside of the vocabulary has a loss that is a number");
  if (!std::isnan(losses[3])) findings.say("a NaN logit makes a loss that is a number");
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result{{"cross_entropy_extremes", run_extremes}};
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    std::vector<Shape> shapes;
    for (int64_t words : {1, 2, 59, 511, 512, 4099, 8192, 9000}) shapes.push_back({type, 5, words, true, 0});
    shapes.push_back({type, 3, 2256, false, 0});
    shapes.push_back({type, 4, 520, true, 1});
    for (const Shape& s : shapes) {
      result.push_back({std::string("cross_entropy_") + name(type) + "_" + std::to_string(s.words) +
                            (s.gradient ? "" : "_loss_only") + (s.offset ? "_unaligned" : ""),
                        [s] { return run_rows(s); }});
    }
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
