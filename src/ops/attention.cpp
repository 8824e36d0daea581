#include "titan/ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>
#include <array>

#include "attention_kernels.h"
#include "tensor_checks.h"
#include "tiled_attention.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// One kernel call: samples [first, last) and positions [begin, end) of the sequence.
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
    check_attention(query, key, value, query.size(1));
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
    // One result for the recorder, whatever the number of documents: the log-sum-exps of all segments are joined.
    auto compute = [&] { return run(kernel, in.query, in.key, in.value, segments, calls); };
    auto [output, statistics] = context.recorder.once<2>(ResultKind::attention, 0, compute);
    if (graph) {
      restore_statistics(calls, segments, statistics, kernel, in.query.size(2));
      // A replay with kept outputs calls no kernel, so none returned its random state.
      if (!calls[0].extra[0].defined()) {
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
    const bool has_column = log_sum_exp_has_column(kernel, statistics.device());
    int64_t at = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const std::vector<int64_t> shape =
          log_sum_exp_shape(kernel, 1, heads, segments[i].end - segments[i].begin, has_column);
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

namespace {

constexpr double kClearlyFaster = 0.9;  // closer, noise would choose, and a run's bits depend on the kernel
constexpr int kWarmUps = 2;             // the first run builds cuDNN's plan
constexpr size_t kRuns = 5;             // the median is one of them, and two disturbed runs do not move it

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string_view name(AttentionKernel kernel) {
  constexpr std::array<std::string_view, 3> kNames{"cuDNN", "flash", "memory-efficient"};
  return kNames[static_cast<size_t>(kernel)];
}

std::optional<AttentionKernel> choose_kernel(std::span<const KernelTiming> timings) {
  const KernelTiming* first = nullptr;
  const KernelTiming* fastest = nullptr;
  for (const KernelTiming& timing : timings) {
    if (!timing.refusal.empty()) continue;
    if (!first) first = &timing;
    if (!fastest || timing.seconds < fastest->seconds) fastest = &timing;
  }
  if (!first) return std::nullopt;
  return fastest->seconds < kClearlyFaster * first->seconds ? fastest->kernel : first->kernel;
}

std::string describe_choice(AttentionKernel chosen, std::span<const KernelTiming> timings) {
  const auto own =
      std::find_if(timings.begin(), timings.end(), [&](const KernelTiming& timing) { return timing.kernel == chosen; });
  TITAN_CHECK(own != timings.end(), name(chosen));
  std::vector<std::string> others;
  for (const KernelTiming& timing : timings) {
    if (timing.kernel == chosen) continue;
    others.push_back(timing.refusal.empty() ? fmt::format("{} takes {:.2f} times as long", name(timing.kernel),
                                                          timing.seconds / own->seconds)
                                            : fmt::format("{} does not take the shape", name(timing.kernel)));
  }
  return fmt::format("Attention by {}: {:.2f} ms forward and backward; {}", name(chosen), 1e3 * own->seconds,
                     join(others, ", "));
}

KernelTiming time_kernel(AttentionKernel kernel, const std::function<double(AttentionKernel)>& measure) {
  KernelTiming timing{kernel, 0, {}};
  try {
    timing.seconds = measure(kernel);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    timing.refusal = first_line(error.what_without_backtrace());
    if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) timing.device_error = std::current_exception();
  }
  return timing;
}

std::vector<KernelTiming> time_kernels(const std::function<double(AttentionKernel)>& measure) {
  std::vector<KernelTiming> timings;
  for (AttentionKernel kernel : {AttentionKernel::cudnn, AttentionKernel::flash, AttentionKernel::efficient}) {
    timings.push_back(time_kernel(kernel, measure));
  }
  return timings;
}

double measure_kernel(AttentionKernel kernel, const AttentionShape& shape, at::ScalarType type,
                      const at::Device& device) {
  const auto options = at::TensorOptions(device).dtype(type);
  auto drawn = [&](int64_t heads) {
    return at::randn({shape.samples, shape.length, heads, shape.head_dim}, options).transpose(1, 2);
  };
  const at::Tensor query = drawn(shape.heads);
  const at::Tensor key = drawn(shape.kv_heads);
  const at::Tensor value = drawn(shape.kv_heads);
  const at::Tensor d_output = drawn(shape.heads);
  TORCH_CHECK(kernel_for(query, kernel) == kernel, name(kernel), " does not take heads of ", shape.head_dim, " in ",
              type);
  const c10::impl::VirtualGuardImpl guard(device.type());
  std::vector<double> seconds;
  for (int run = -kWarmUps; run < static_cast<int>(kRuns); ++run) {
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(guard.getStream(device));
    const DenseAttention forward = dense_attention(kernel, query, key, value, /*causal=*/true);
    dense_attention_backward(kernel, d_output, query, key, value, forward, /*causal=*/true);
    end.record(guard.getStream(device));
    end.synchronize();
    if (run >= 0) seconds.push_back(1e-3 * begin.elapsedTime(end));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

}  // namespace titan
