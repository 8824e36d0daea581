#include "tiled_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "cpu_attention.h"
#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// A task: one head of a block in one sample and, in forward, its first query.
struct Task {
  AttentionBlock block;
  int64_t head;
  int64_t first_query;
};

/// `of_block` appends the tasks of a block of one sample.
template <class OfBlock>
std::vector<Task> tasks_of(const std::vector<AttentionBlock>& blocks, const OfBlock& of_block) {
  std::vector<Task> tasks;
  for (AttentionBlock block : blocks) {
    const int64_t end = block.sample + std::exchange(block.samples, 1);
    for (; block.sample < end; ++block.sample) of_block(tasks, block);
  }
  return tasks;
}

AttentionSizes sizes_of(const AttentionBlock& block, const at::Tensor& query, const at::Tensor& key) {
  return {block.queries, block.keys, block.causal, query.size(2), key.size(2), query.size(3)};
}

/// Pointers into a [B, T, H, d] tensor, from position `place` on.
template <class T>
HeadRows<T> rows_of(const at::Tensor& tensor, int64_t sample, int64_t place) {
  const int64_t offset = sample * tensor.stride(0) + place * tensor.stride(1);
  return {static_cast<T*>(tensor.data_ptr()) + offset, tensor.stride(1), tensor.stride(2)};
}

/// The same for the log-sum-exp [B, H, T].
template <class T>
HeadRows<T> sums_of(const at::Tensor& tensor, const AttentionBlock& block) {
  const int64_t offset = block.sample * tensor.stride(0) + block.query;
  return {static_cast<T*>(tensor.data_ptr()) + offset, 1, tensor.stride(1)};
}

/// Runs `run(task, scratch)` for every task; idle threads take the next one (dynamic scheduling).
template <class Run>
void run_tasks(const std::vector<Task>& tasks, int64_t scratch_floats, const Run& run) {
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t workers = std::min<int64_t>(at::get_num_threads(), count);
  at::Tensor scratch = at::empty({workers, scratch_floats}, at::TensorOptions(at::kFloat));
  float* memory = scratch.mutable_data_ptr<float>();
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers, 1, [&](int64_t worker, int64_t) {
    float* own = memory + worker * scratch_floats;
    for (int64_t i = next++; i < count; i = next++) run(tasks[static_cast<size_t>(i)], own);
  });
}

template <class T, class Output>
void forward(const AttentionSums& sums, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             const std::vector<AttentionBlock>& blocks, bool resumes) {
  const std::vector<Task> tasks = tasks_of(blocks, [&](std::vector<Task>& added, const AttentionBlock& block) {
    for (int64_t head = 0; head < query.size(2); ++head) {
      for (int64_t first = 0; first < block.queries; first += kAttentionTile) added.push_back({block, head, first});
    }
  });
  const int64_t scratch = attention_forward_scratch(sizes_of({}, query, key));
  run_tasks(tasks, scratch, [&](const Task& task, float* memory) {
    const AttentionBlock& block = task.block;
    const AttentionForward<T, Output> work{sizes_of(block, query, key),
                                           rows_of<const T>(query, block.sample, block.query),
                                           rows_of<const T>(key, block.sample, block.key),
                                           rows_of<const T>(value, block.sample, block.key),
                                           rows_of<Output>(sums.output, block.sample, block.query),
                                           sums_of<float>(sums.log_sum_exp, block),
                                           resumes};
    cpu_attention_forward(work, task.head, task.first_query, memory);
  });
}

struct BackwardInputs {
  const at::Tensor &d_output, &query, &key, &value, &output, &log_sum_exp;
};

template <class T, class Gradient>
void backward(const AttentionGradients& d, const BackwardInputs& in, const std::vector<AttentionBlock>& blocks,
              bool adds) {
  AttentionBlock longest{};
  const std::vector<Task> tasks = tasks_of(blocks, [&](std::vector<Task>& added, const AttentionBlock& block) {
    for (int64_t head = 0; head < in.key.size(2); ++head) added.push_back({block, head, 0});
    longest.keys = std::max(longest.keys, block.keys);
  });
  const int64_t scratch = attention_backward_scratch(sizes_of(longest, in.query, in.key));
  run_tasks(tasks, scratch, [&](const Task& task, float* memory) {
    const AttentionBlock& block = task.block;
    const AttentionBackward<T, Gradient> work{sizes_of(block, in.query, in.key),
                                              rows_of<const T>(in.query, block.sample, block.query),
                                              rows_of<const T>(in.key, block.sample, block.key),
                                              rows_of<const T>(in.value, block.sample, block.key),
                                              rows_of<const T>(in.output, block.sample, block.query),
                                              rows_of<const T>(in.d_output, block.sample, block.query),
                                              sums_of<const float>(in.log_sum_exp, block),
                                              rows_of<Gradient>(d.query, block.sample, block.query),
                                              rows_of<Gradient>(d.key, block.sample, block.key),
                                              rows_of<Gradient>(d.value, block.sample, block.key),
                                              adds};
    cpu_attention_backward(work, task.head, memory);
  });
}

/// The kernels need contiguous rows.
at::Tensor with_whole_rows(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 || tensor.size(3) == 1 ? tensor : tensor.contiguous();
}

bool is_float(const at::Tensor& query) {
  TITAN_CHECK(query.is_cpu() && (query.scalar_type() == at::kFloat || query.scalar_type() == at::kBFloat16),
              summary_of(query));
  return query.scalar_type() == at::kFloat;
}

/// The log-sum-exp of `query` [B, T, Hq, d]: fp32 [B, Hq, T], contiguous, since the kernels step through it.
void check_log_sum_exp(const at::Tensor& log_sum_exp, const at::Tensor& query) {
  TITAN_CHECK(log_sum_exp.scalar_type() == at::kFloat && log_sum_exp.is_cpu() && log_sum_exp.dim() == 3 &&
                  log_sum_exp.size(0) == query.size(0) && log_sum_exp.size(1) == query.size(2) &&
                  log_sum_exp.size(2) == query.size(1) && log_sum_exp.stride(2) == 1,
              summary_of(log_sum_exp), summary_of(query));
}

void check_backward(const BackwardInputs& in) {
  check_attention(in.query, in.key, in.value);
  TITAN_CHECK(same_form(in.d_output, in.query) && same_form(in.output, in.query), summary_of(in.d_output),
              summary_of(in.output), summary_of(in.query));
  check_log_sum_exp(in.log_sum_exp, in.query);
}

bool is_wide(const at::Tensor& sum, const at::Tensor& of) {
  return sum.defined() && sum.scalar_type() == at::kFloat && sum.sizes() == of.sizes() && sum.device() == of.device();
}

}  // namespace

std::array<at::Tensor, 2> tiled_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const std::vector<AttentionBlock>& blocks) {
  check_attention(query, key, value);
  const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key), v = with_whole_rows(value);
  at::Tensor output = at::empty(query.sizes(), query.options());
  at::Tensor log_sum_exp = at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
  const auto run = is_float(query) ? forward<float, float> : forward<BFloat16Bits, BFloat16Bits>;
  run({output, log_sum_exp}, q, k, v, blocks, /*resumes=*/false);
  return {output, log_sum_exp};
}

std::array<at::Tensor, 3> tiled_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   const std::vector<AttentionBlock>& blocks) {
  check_backward({d_output, query, key, value, output, log_sum_exp});
  const AttentionGradients d{at::empty(query.sizes(), query.options()), at::empty(key.sizes(), key.options()),
                             at::empty(value.sizes(), value.options())};
  const at::Tensor d_out = with_whole_rows(d_output), q = with_whole_rows(query), k = with_whole_rows(key),
                   v = with_whole_rows(value);
  const auto run = is_float(query) ? backward<float, float> : backward<BFloat16Bits, BFloat16Bits>;
  run(d, {d_out, q, k, v, output, log_sum_exp}, blocks, /*adds=*/false);
  return {d.query, d.key, d.value};
}

void merge_tiled_attention(const AttentionSums& sums, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const std::vector<AttentionBlock>& blocks) {
  check_attention(query, key, value);
  TITAN_CHECK(is_wide(sums.output, query), summary_of(sums.output), summary_of(query));
  check_log_sum_exp(sums.log_sum_exp, query);
  const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key), v = with_whole_rows(value);
  const auto run = is_float(query) ? forward<float, float> : forward<BFloat16Bits, float>;
  run(sums, q, k, v, blocks, /*resumes=*/true);
}

void add_tiled_gradients(const AttentionGradients& gradients, const at::Tensor& d_output, const at::Tensor& query,
                         const at::Tensor& key, const at::Tensor& value, const at::Tensor& output,
                         const at::Tensor& log_sum_exp, const std::vector<AttentionBlock>& blocks) {
  check_backward({d_output, query, key, value, output, log_sum_exp});
  TITAN_CHECK(is_wide(gradients.query, query) && is_wide(gradients.key, key) && is_wide(gradients.value, value),
              summary_of(gradients.query), summary_of(gradients.key), summary_of(gradients.value));
  const at::Tensor d_out = with_whole_rows(d_output), q = with_whole_rows(query), k = with_whole_rows(key),
                   v = with_whole_rows(value);
  const auto run = is_float(query) ? backward<float, float> : backward<BFloat16Bits, float>;
  run(gradients, {d_out, q, k, v, output, log_sum_exp}, blocks, /*adds=*/true);
}

}  // namespace titan
