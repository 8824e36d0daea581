#include "tiled_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "cpu_attention.h"
#include "titan/base/error.h"

namespace titan {
namespace {

struct Document {
  int64_t sample, begin, end;

  int64_t length() const { return end - begin; }
};

/// One piece of work: a head of a document, and in forward the first of its queries.
struct Task {
  Document document;
  int64_t head;
  int64_t first_query;
};

std::vector<Document> documents_of(const at::Tensor& query, const std::vector<DocumentStarts>& starts) {
  std::vector<Document> documents;
  for (int64_t sample = 0; sample < query.size(0); ++sample) {
    const DocumentStarts whole{0};
    const DocumentStarts& begins = starts.empty() ? whole : starts[static_cast<size_t>(sample)];
    for (size_t i = 0; i < begins.size(); ++i) {
      documents.push_back({sample, begins[i], i + 1 < begins.size() ? begins[i + 1] : query.size(1)});
    }
  }
  return documents;
}

AttentionSizes sizes_of(const Document& document, const at::Tensor& query, const at::Tensor& key) {
  return {document.length(), query.size(2), key.size(2), query.size(3)};
}

/// Memory of the document inside a [B, T, H, d] tensor.
template <class T>
HeadRows<T> rows_of(const at::Tensor& tensor, const Document& document) {
  const int64_t offset = document.sample * tensor.stride(0) + document.begin * tensor.stride(1);
  return {static_cast<T*>(tensor.data_ptr()) + offset, tensor.stride(1), tensor.stride(2)};
}

/// The same inside the log-sum-exp [B, H, T].
template <class T>
HeadRows<T> sums_of(const at::Tensor& tensor, const Document& document) {
  const int64_t offset = document.sample * tensor.stride(0) + document.begin;
  return {static_cast<T*>(tensor.data_ptr()) + offset, 1, tensor.stride(1)};
}

/// Runs `run(task, scratch)` for every task; a thread that is done takes the next, so a busy processor costs little.
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

template <class T>
void forward(const at::Tensor& output, const at::Tensor& log_sum_exp, const at::Tensor& query, const at::Tensor& key,
             const at::Tensor& value, const std::vector<Document>& documents) {
  std::vector<Task> tasks;
  for (const Document& document : documents) {
    for (int64_t head = 0; head < query.size(2); ++head) {
      for (int64_t first = 0; first < document.length(); first += kAttentionTile) {
        tasks.push_back({document, head, first});
      }
    }
  }
  const int64_t scratch = attention_forward_scratch(sizes_of({0, 0, query.size(1)}, query, key));
  run_tasks(tasks, scratch, [&](const Task& task, float* memory) {
    const Document& document = task.document;
    const AttentionForward<T> work{sizes_of(document, query, key),  rows_of<const T>(query, document),
                                   rows_of<const T>(key, document), rows_of<const T>(value, document),
                                   rows_of<T>(output, document),    sums_of<float>(log_sum_exp, document)};
    cpu_attention_forward(work, task.head, task.first_query, memory);
  });
}

struct Gradients {
  at::Tensor query, key, value;
};

template <class T>
void backward(const Gradients& d, const at::Tensor& d_output, const at::Tensor& query, const at::Tensor& key,
              const at::Tensor& value, const at::Tensor& output, const at::Tensor& log_sum_exp,
              const std::vector<Document>& documents) {
  std::vector<Task> tasks;
  int64_t longest = 0;
  for (const Document& document : documents) {
    for (int64_t head = 0; head < key.size(2); ++head) tasks.push_back({document, head, 0});
    longest = std::max(longest, document.length());
  }
  const int64_t scratch = attention_backward_scratch(sizes_of({0, 0, longest}, query, key));
  run_tasks(tasks, scratch, [&](const Task& task, float* memory) {
    const Document& document = task.document;
    const AttentionBackward<T> work{sizes_of(document, query, key),
                                    rows_of<const T>(query, document),
                                    rows_of<const T>(key, document),
                                    rows_of<const T>(value, document),
                                    rows_of<const T>(output, document),
                                    rows_of<const T>(d_output, document),
                                    sums_of<const float>(log_sum_exp, document),
                                    rows_of<T>(d.query, document),
                                    rows_of<T>(d.key, document),
                                    rows_of<T>(d.value, document)};
    cpu_attention_backward(work, task.head, memory);
  });
}

/// The kernels walk along a row's numbers one by one.
at::Tensor with_whole_rows(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 || tensor.size(3) == 1 ? tensor : tensor.contiguous();
}

bool is_float(const at::Tensor& query) {
  TITAN_CHECK(query.scalar_type() == at::kFloat || query.scalar_type() == at::kBFloat16,
              at::toString(query.scalar_type()));
  return query.scalar_type() == at::kFloat;
}

}  // namespace

std::array<at::Tensor, 2> tiled_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const std::vector<DocumentStarts>& documents) {
  const at::Tensor q = with_whole_rows(query), k = with_whole_rows(key), v = with_whole_rows(value);
  at::Tensor output = at::empty(query.sizes(), query.options());
  at::Tensor log_sum_exp = at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
  const auto run = is_float(query) ? forward<float> : forward<BFloat16Bits>;
  run(output, log_sum_exp, q, k, v, documents_of(query, documents));
  return {output, log_sum_exp};
}

std::array<at::Tensor, 3> tiled_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   const std::vector<DocumentStarts>& documents) {
  const Gradients d{at::empty(query.sizes(), query.options()), at::empty(key.sizes(), key.options()),
                    at::empty(value.sizes(), value.options())};
  const auto run = is_float(query) ? backward<float> : backward<BFloat16Bits>;
  run(d, with_whole_rows(d_output), with_whole_rows(query), with_whole_rows(key), with_whole_rows(value), output,
      log_sum_exp, documents_of(query, documents));
  return {d.query, d.key, d.value};
}

}  // namespace titan
