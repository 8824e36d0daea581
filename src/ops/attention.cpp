#include "titan/ops/attention.h"

#include <ATen/ATen.h>

#include "attention_kernels.h"
#include "tiled_attention.h"
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

std::vector<Segment> segments_of(const at::Tensor& query, const std::vector<DocumentStarts>& documents) {
  const int64_t samples = query.size(0);
  const int64_t length = query.size(1);
  if (documents.empty()) return {{0, samples, 0, length}};
  std::vector<Segment> segments;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const DocumentStarts& starts = documents[static_cast<size_t>(sample)];
    for (size_t i = 0; i < starts.size(); ++i) {
      int64_t end = i + 1 < starts.size() ? starts[i + 1] : length;
      segments.push_back({sample, sample + 1, starts[i], end});
    }
  }
  return segments;
}

struct TiledBackward : BackwardNode {
  at::Tensor query, key, value, output, log_sum_exp;
  std::vector<AttentionBlock> blocks;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    auto [dq, dk, dv] = tiled_attention_backward(gradients[0], query, key, value, output, log_sum_exp, blocks);
    query.reset(), key.reset(), value.reset(), output.reset(), log_sum_exp.reset();
    return {dq, dk, dv};
  }
};

/// Backward of one kernel call per segment.
struct SegmentsBackward : BackwardNode {
  at::Tensor query, key, value, output;
  std::vector<Segment> segments;
  std::vector<DenseAttention> calls;
  AttentionKernel kernel = AttentionKernel::cudnn;

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
    return dense_attention_backward(kernel, segments[i].of(d_output), segments[i].of(query), segments[i].of(key),
                                    segments[i].of(value), calls[i], /*causal=*/true);
  }
  void release() {
    query.reset(), key.reset(), value.reset(), output.reset();
    calls.clear();
  }
};

class SdpaCore : public AttentionCore {
 public:
  SdpaCore(bool block_causal, AttentionKernel preferred) : block_causal_(block_causal), preferred_(preferred) {}

  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionBounds& bounds, UnitContext& context) const override {
    const std::vector<DocumentStarts> documents =
        block_causal_ ? bounds.document_starts : std::vector<DocumentStarts>();
    TITAN_CHECK(documents.empty() || static_cast<int64_t>(documents.size()) == query.size(0), documents.size(),
                query.size(0));
    if (query.is_cpu()) return forward_tiled({query, key, value}, documents, context);
    const AttentionKernel kernel = kernel_for(query, preferred_for(!documents.empty(), preferred_));
    return forward_segments({query, key, value}, documents, kernel, context);
  }

 private:
  struct Inputs {
    const at::Tensor &query, &key, &value;
  };

  static at::Tensor forward_tiled(const Inputs& in, const std::vector<DocumentStarts>& documents,
                                  UnitContext& context) {
    const bool graph = wants_gradient({&in.query, &in.key, &in.value});
    BelowAutograd below;
    std::vector<AttentionBlock> blocks = attention_blocks({}, in.query.size(0), in.query.size(1), 0, 0, documents);
    auto compute = [&] { return tiled_attention(in.query, in.key, in.value, blocks); };
    auto [output, log_sum_exp] = context.recorder.once<2>(ResultKind::attention, 0, compute);
    if (graph) {
      auto node = std::make_shared<TiledBackward>();
      save(*node, in, output, log_sum_exp, context);
      node->log_sum_exp = log_sum_exp;
      node->blocks = std::move(blocks);
      connect(std::move(node), {&in.query, &in.key, &in.value}, {output});
    }
    return output;
  }

  static at::Tensor forward_segments(const Inputs& in, const std::vector<DocumentStarts>& documents,
                                     AttentionKernel kernel, UnitContext& context) {
    const bool graph = wants_gradient({&in.query, &in.key, &in.value});
    BelowAutograd below;
    std::vector<Segment> segments = segments_of(in.query, documents);
    std::vector<DenseAttention> calls(segments.size());
    // Kept as one pair: the output, and every segment's log-sum-exp in a row.
    auto compute = [&] { return run(kernel, in.query, in.key, in.value, segments, calls); };
    auto [output, statistics] = context.recorder.once<2>(ResultKind::attention, 0, compute);
    if (graph) {
      restore_statistics(calls, segments, statistics, kernel, in.query.size(2));
      if (!calls[0].extra[0].defined()) {  // the outputs were kept, and nothing was called
        const std::array<at::Tensor, 2> state = no_random_state(in.query);
        for (DenseAttention& call : calls) call.extra = state;
      }
      auto node = std::make_shared<SegmentsBackward>();
      save(*node, in, output, statistics, context);
      node->segments = std::move(segments);
      node->calls = std::move(calls);
      node->kernel = kernel;
      connect(std::move(node), {&in.query, &in.key, &in.value}, {output});
    }
    return output;
  }

  template <class Node>
  static void save(Node& node, const Inputs& in, const at::Tensor& output, const at::Tensor& statistics,
                   UnitContext& context) {
    node.query = in.query.detach();
    node.key = in.key.detach();
    node.value = in.value.detach();
    node.output = output.detach();
    for (const at::Tensor& saved : {in.query, in.key, in.value, output, statistics}) context.note_saved(saved);
  }

  static std::array<at::Tensor, 2> run(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value, const std::vector<Segment>& segments,
                                       std::vector<DenseAttention>& calls) {
    if (segments.size() == 1) {
      calls[0] =
          dense_attention(kernel, segments[0].of(query), segments[0].of(key), segments[0].of(value), /*causal=*/true);
      at::Tensor output = std::move(calls[0].output).transpose(1, 2);
      return {output.contiguous(), calls[0].log_sum_exp};
    }
    at::Tensor output = at::empty(query.sizes(), query.options());
    std::vector<at::Tensor> statistics;
    for (size_t i = 0; i < segments.size(); ++i) {
      calls[i] =
          dense_attention(kernel, segments[i].of(query), segments[i].of(key), segments[i].of(value), /*causal=*/true);
      segments[i].of(output).copy_(calls[i].output);
      calls[i].output.reset();
      statistics.push_back(calls[i].log_sum_exp.reshape({-1}));
    }
    return {output, at::cat(statistics)};
  }

  static void restore_statistics(std::vector<DenseAttention>& calls, const std::vector<Segment>& segments,
                                 const at::Tensor& statistics, AttentionKernel kernel, int64_t heads) {
    if (segments.size() == 1) {
      calls[0].log_sum_exp = statistics;
      return;
    }
    int64_t at = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const std::vector<int64_t> shape = log_sum_exp_shape(kernel, 1, heads, segments[i].end - segments[i].begin);
      const int64_t numel = c10::multiply_integers(shape);
      calls[i].log_sum_exp = statistics.narrow(0, at, numel).view(shape);
      at += numel;
    }
  }

  bool block_causal_;
  AttentionKernel preferred_;
};

}  // namespace

std::unique_ptr<AttentionCore> make_sdpa_core(bool block_causal, AttentionKernel preferred) {
  return std::make_unique<SdpaCore>(block_causal, preferred);
}

}  // namespace titan
