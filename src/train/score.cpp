#include "titan/train/score.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/stream/batch_stream.h"
#include "titan/train/batch.h"

namespace titan {
namespace {

/// Inputs [begin, begin + length) of a text, and their labels.
struct Window {
  size_t text;
  int64_t begin, length;
};

std::vector<Window> windows_of(std::span<const ScoredText> texts, int64_t most) {
  std::vector<Window> windows;
  for (size_t text = 0; text < texts.size(); ++text) {
    const int64_t inputs = std::ssize(texts[text].tokens) - 1;
    TITAN_CHECK(texts[text].first >= 1, texts[text].first);
    for (int64_t begin = 0; begin < inputs; begin += most) {
      const int64_t length = std::min(most, inputs - begin);
      // No result needs a window that ends before the first scored token.
      if (begin + length >= texts[text].first) windows.push_back({text, begin, length});
    }
  }
  return windows;
}

/// One sample, padded to `length`.
MicroBatch batch_of(const ScoredText& text, const Window& window, int64_t length) {
  MicroBatch batch;
  batch.samples = 1;
  batch.sequence_length = length;
  const auto size = static_cast<size_t>(length);
  batch.tokens.assign(size, 0);
  batch.labels.assign(size, kIgnoredLabel);
  batch.positions.resize(size);
  batch.document_bounds = {{0}};
  for (int64_t i = 0; i < length; ++i) batch.positions[static_cast<size_t>(i)] = i;
  for (int64_t i = 0; i < window.length; ++i) {
    const auto at = static_cast<size_t>(window.begin + i);
    batch.tokens[static_cast<size_t>(i)] = text.tokens[at];
    if (window.begin + i + 1 >= text.first) batch.labels[static_cast<size_t>(i)] = text.tokens[at + 1];
  }
  return batch;
}

}  // namespace

std::vector<double> negative_log_likelihoods(const Run& run, std::span<const ScoredText> texts, int64_t window) {
  const std::vector<Window> windows = windows_of(texts, window);
  const int64_t ranks = run.place.mesh.data_parallel_degree();
  const int64_t mine = run.place.mesh.data_parallel_rank(run.place.rank);
  // Ranks that share a sequence need equal parts.
  const int64_t unit = run.place.mesh.size(MeshAxis::tp) * run.share.split.chunks();
  at::Tensor sums =
      at::zeros({std::max<int64_t>(1, std::ssize(windows))}, at::TensorOptions(run.device.device).dtype(at::kDouble));
  for (int64_t first = 0; first < std::ssize(windows); first += ranks) {
    // A rank without a window in the last round repeats the last one: all ranks must make the same calls.
    const int64_t index = std::min(first + mine, static_cast<int64_t>(std::ssize(windows)) - 1);
    const Window& one = windows[static_cast<size_t>(index)];
    const int64_t length = (one.length + unit - 1) / unit * unit;
    const MicroBatch batch = batch_of(texts[one.text], one, length);
    const bool block_causal = run.model.description.block_causal;
    const at::Tensor loss =
        infer(run, to_device(batch, 1.0, block_causal, run.device.device, run.share), UnitMode::evaluate);
    if (first + mine < std::ssize(windows)) sums[index] += loss;
  }
  if (run.communicators.loss) run.communicators.loss->all_reduce({sums})->wait();
  sums = sums.cpu();
  std::vector<double> results(texts.size(), 0.0);
  for (size_t i = 0; i < windows.size(); ++i) results[windows[i].text] += sums[static_cast<int64_t>(i)].item<double>();
  return results;
}

}  // namespace titan
