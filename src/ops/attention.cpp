#include "titan/ops/attention.h"

#include <ATen/ATen.h>

#include "attention_kernels.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// One kernel call: samples [first, last) and places [begin, end) of the sequence.
struct Segment {
  int64_t first_sample, last_sample, begin, end;

  at::Tensor of(const at::Tensor& tensor) const {  // [B, T, H, d] → the kernels' [b, H, t, d]
    return tensor.narrow(0, first_sample, last_sample - first_sample).narrow(1, begin, end - begin).transpose(1, 2);
  }
};

std::vector<Segment> segments_of(const at::Tensor& query, const AttentionBounds& bounds, bool block_causal) {
  const int64_t samples = query.size(0);
  const int64_t length = query.size(1);
  if (!block_causal || bounds.document_starts.empty()) return {{0, samples, 0, length}};
  TITAN_CHECK(static_cast<int64_t>(bounds.document_starts.size()) == samples, bounds.document_starts.size(), samples);
  std::vector<Segment> segments;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const DocumentStarts& starts = bounds.document_starts[static_cast<size_t>(sample)];
    for (size_t i = 0; i < starts.size(); ++i) {
      int64_t end = i + 1 < starts.size() ? starts[i + 1] : length;
      segments.push_back({sample, sample + 1, starts[i], end});
    }
  }
  return segments;
}

struct SdpaBackward : BackwardNode {
  at::Tensor query, key, value, output;
  std::vector<Segment> segments;
  std::vector<DenseAttention> calls;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    const at::Tensor& d_output = gradients[0];
    if (segments.size() == 1) {
      auto [dq, dk, dv] = of_segment(d_output, 0);
      release();
      return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
    }
    std::array<at::Tensor, 3> whole{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
    for (size_t i = 0; i < segments.size(); ++i) {
      auto parts = of_segment(d_output, i);
      for (size_t part = 0; part < parts.size(); ++part) segments[i].of(whole[part]).copy_(parts[part]);
    }
    release();
    return {whole[0], whole[1], whole[2]};
  }

 private:
  std::array<at::Tensor, 3> of_segment(const at::Tensor& d_output, size_t i) {
    calls[i].output = segments[i].of(output);
    return dense_attention_backward(segments[i].of(d_output), segments[i].of(query), segments[i].of(key),
                                    segments[i].of(value), calls[i]);
  }
  void release() {
    query.reset(), key.reset(), value.reset(), output.reset();
    calls.clear();
  }
};

class SdpaCore : public AttentionCore {
 public:
  explicit SdpaCore(bool block_causal) : block_causal_(block_causal) {}

  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionBounds& bounds, UnitContext& context) const override {
    const bool graph = wants_gradient({&query, &key, &value});
    BelowAutograd below;
    std::vector<Segment> segments = segments_of(query, bounds, block_causal_);
    std::vector<DenseAttention> calls(segments.size());
    // Kept as one pair: the output, and every segment's log-sum-exp in a row (the CPU kernel's own form needs no more).
    auto compute = [&] { return run(query, key, value, segments, calls); };
    auto [output, statistics] = context.recorder.once<2>(ResultKind::attention, 0, compute);
    if (graph) {
      restore_statistics(calls, segments, statistics, query.size(2));
      auto node = std::make_shared<SdpaBackward>();
      node->query = query.detach();
      node->key = key.detach();
      node->value = value.detach();
      node->output = output.detach();
      node->segments = std::move(segments);
      node->calls = std::move(calls);
      for (const at::Tensor& saved : {query, key, value, output, statistics}) context.note_saved(saved);
      connect(std::move(node), {&query, &key, &value}, {output});
    }
    return output;
  }

 private:
  static std::array<at::Tensor, 2> run(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                       const std::vector<Segment>& segments, std::vector<DenseAttention>& calls) {
    if (segments.size() == 1) {
      calls[0] = dense_attention(segments[0].of(query), segments[0].of(key), segments[0].of(value));
      at::Tensor output = std::move(calls[0].output).transpose(1, 2);
      return {output.contiguous(), calls[0].log_sum_exp};
    }
    at::Tensor output = at::empty(query.sizes(), query.options());
    std::vector<at::Tensor> statistics;
    for (size_t i = 0; i < segments.size(); ++i) {
      calls[i] = dense_attention(segments[i].of(query), segments[i].of(key), segments[i].of(value));
      segments[i].of(output).copy_(calls[i].output);
      calls[i].output.reset();
      statistics.push_back(calls[i].log_sum_exp.reshape({-1}));
    }
    return {output, at::cat(statistics)};
  }

  static void restore_statistics(std::vector<DenseAttention>& calls, const std::vector<Segment>& segments,
                                 const at::Tensor& statistics, int64_t heads) {
    if (segments.size() == 1) {
      calls[0].log_sum_exp = statistics;
      return;
    }
    int64_t at = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const int64_t length = segments[i].end - segments[i].begin;
      calls[i].log_sum_exp = statistics.narrow(0, at, heads * length).view({1, heads, length});
      at += heads * length;
    }
  }

  bool block_causal_;
};

}  // namespace

std::unique_ptr<AttentionCore> make_sdpa_core(bool block_causal) { return std::make_unique<SdpaCore>(block_causal); }

}  // namespace titan
