// How fast the kernels of a step on one device that move memory rather than multiply do so, in the shapes of a model,
// against a copy on the same machine. scripts/gpu/bench.py writes it into its page.
//   bench_kernel_rates DEVICE DIM HIDDEN HEADS KV_HEADS VOCABULARY TOKENS
// prints one JSON object: bytes per second of a copy (read plus written), and these kernels' bytes and seconds. DEVICE
// is cuda, or cpu: the host's build of the kernels, which shows that this program works and nothing else.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/dense_heads.h"
#include "support/kernel_machine.h"

namespace titan {
namespace {

constexpr size_t kRuns = 7;
constexpr int kLaunches = 10;  // of a run, on a GPU: one alone is as short as the pause around it
constexpr KernelType kType = KernelType::bf16;
/// Bytes to read between two uses of the same ones: four times the second-level cache of the largest card (60 MB), so
/// that no launch finds there what another left.
constexpr int64_t kApart = int64_t{256} << 20;

struct Shapes {
  int64_t dim, hidden, heads, kv_heads, vocabulary, tokens;
};

template <class Arguments>
KernelTraffic moved_by(const Arguments& a) {
  return traffic(a);
}
KernelTraffic moved_by(const CrossEntropyRows& a) { return traffic(a, a.rows); }
KernelTraffic moved_by(const EmbeddingGradient& a) { return traffic(a, a.tokens, a.tokens); }

class Rates {
 public:
  Rates(KernelMachine& machine, bool on_gpu) : machine_(machine), on_gpu_(on_gpu) {}

  /// Seconds of one `work`: the median of runs, each the mean of several.
  double seconds_of(const std::function<void()>& work) {
    const int launches = on_gpu_ ? kLaunches : 1;
    std::vector<double> seconds;
    for (size_t run = 0; run <= kRuns; ++run) {  // the first is a warm-up
      seconds.push_back(machine_.seconds_of([&] {
        for (int i = 0; i < launches; ++i) work();
      }) / launches);
      if (!on_gpu_) break;
    }
    std::sort(seconds.begin() + (on_gpu_ ? 1 : 0), seconds.end());
    return seconds[seconds.size() / 2];
  }

  /// Launches the kernel with what calls of `make` give, in turn, and forgets it all.
  template <class Arguments, class Make>
  void measure(const char* name, void (*Kernels::*kernel)(const Arguments&, CUstream_st*), const Make& make) {
    std::vector<Arguments> sets{make()};
    const KernelTraffic moved = moved_by(sets[0]);
    while (on_gpu_ && static_cast<int64_t>(sets.size()) * moved.read < kApart) sets.push_back(make());
    machine_.launch(kernel, sets[0]);  // fails here when it fails
    const auto launcher = machine_.kernels().*kernel;
    size_t next = 0;
    const double seconds = seconds_of([&] { launcher(sets[next++ % sets.size()], nullptr); });
    kernels_.push_back({{"name", name}, {"bytes", moved.bytes()}, {"seconds", seconds}});
    kept_.clear();
  }

  /// Normal numbers, which no kernel takes a short way around.
  void* numbers(KernelType type, int64_t count, double deviation = 1) {
    void* begin = memory(count * bytes_of(type));
    machine_.launch(&Kernels::normal_fill, {type, count, {1, kept_.size(), deviation}, {0, count, 1}, begin});
    return begin;
  }
  void* memory(int64_t bytes) { return kept_.emplace_back(machine_.memory(static_cast<size_t>(bytes)))->data(); }
  template <class T>
  T* values(const std::vector<T>& values) {
    kept_.push_back(machine_.memory(values.size() * sizeof(T)));
    kept_.back()->write(values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(kept_.back()->data());
  }
  double copy_bytes_per_second() {
    const size_t bytes = on_gpu_ ? size_t{2} << 30 : size_t{1} << 20;
    const auto from = machine_.memory(bytes), to = machine_.memory(bytes);
    return 2.0 * static_cast<double>(bytes) / seconds_of([&] { machine_.copy(*to, *from, bytes); });
  }
  const nlohmann::json& kernels() const { return kernels_; }

 private:
  KernelMachine& machine_;
  bool on_gpu_;
  std::vector<std::unique_ptr<MachineMemory>> kept_;
  nlohmann::json kernels_ = nlohmann::json::array();
};

/// Of rows of the hidden states, and of `s.heads` heads each, as in Qwen 3.
void norms(Rates& rates, const Shapes& s) {
  const int64_t count = s.tokens * s.dim, stream = count * bytes_of(kType);
  const auto forward = [&](int64_t columns, bool adds) {
    RmsNormForward a;
    a.type = kType;
    a.rows = count / columns;
    a.columns = columns;
    a.epsilon = 1e-5f;
    a.x = rates.numbers(kType, count);
    a.weight = rates.numbers(kType, columns);
    a.normed = rates.memory(stream);
    a.scale = static_cast<float*>(rates.memory(a.rows * 4));
    if (adds) a.delta = rates.numbers(kType, count);
    if (adds) a.sum = rates.memory(stream);
    return a;
  };
  rates.measure("RMS norm, forward", &Kernels::rms_norm_forward, [&] { return forward(s.dim, false); });
  rates.measure("residual add and RMS norm, forward", &Kernels::rms_norm_forward, [&] { return forward(s.dim, true); });
  const auto backward = [&](int64_t columns, bool adds) {
    RmsNormBackward b;
    b.type = kType;
    b.rows = count / columns;
    b.columns = columns;
    b.d_normed = rates.numbers(kType, count);
    if (adds) b.d_residual = rates.numbers(kType, count);
    b.x = rates.numbers(kType, count);
    b.weight = rates.numbers(kType, columns);
    b.scale = static_cast<const float*>(rates.numbers(KernelType::fp32, b.rows));
    b.dx = rates.memory(stream);
    b.partials = static_cast<float*>(rates.memory(rms_norm_partials(b.rows, columns) * columns * 4));
    b.d_weight = static_cast<float*>(rates.memory(columns * 4));
    return b;
  };
  rates.measure("RMS norm and residual, backward", &Kernels::rms_norm_backward, [&] { return backward(s.dim, true); });
  const int64_t head_dim = s.dim / s.heads;
  rates.measure("RMS norm of heads, forward", &Kernels::rms_norm_forward, [&] { return forward(head_dim, false); });
  rates.measure("RMS norm of heads, backward", &Kernels::rms_norm_backward, [&] { return backward(head_dim, false); });
}

void rotation(Rates& rates, const Shapes& s) {
  rates.measure("rotary embedding", &Kernels::rotate, [&] {
    RotaryTurn a;
    a.type = kType;
    a.tokens = a.length = s.tokens;
    a.head_dim = s.dim / s.heads;
    a.query_heads = s.heads;
    a.key_heads = s.kv_heads;
    a.query = a.turned_query = rates.numbers(kType, s.tokens * s.dim);
    a.key = a.turned_key = rates.numbers(kType, s.tokens * s.kv_heads * a.head_dim);
    // Turned in place again and again: factors of a small size would die out, these stay within bf16.
    a.table = static_cast<const float*>(rates.numbers(KernelType::fp32, s.tokens * a.head_dim, 0.7));
    set_dense_strides(a);
    return a;
  });
}

void swiglu(Rates& rates, const Shapes& s) {
  const int64_t count = s.tokens * s.hidden, bytes = count * bytes_of(kType);
  rates.measure("SwiGLU, forward", &Kernels::swiglu_forward, [&] {
    return SwigluForward{kType,
                         s.tokens,
                         s.hidden,
                         s.hidden,
                         rates.numbers(kType, count),
                         rates.numbers(kType, count),
                         rates.memory(bytes)};
  });
  rates.measure("SwiGLU, backward", &Kernels::swiglu_backward, [&] {
    return SwigluBackward{kType,
                          s.tokens,
                          s.hidden,
                          s.hidden,
                          s.hidden,
                          rates.numbers(kType, count),
                          rates.numbers(kType, count),
                          rates.numbers(kType, count),
                          rates.memory(bytes),
                          rates.memory(bytes)};
  });
}

void loss(Rates& rates, const Shapes& s) {
  rates.measure("cross-entropy and its gradient", &Kernels::cross_entropy, [&] {
    CrossEntropyRows a;
    a.type = kType;
    a.rows = std::max<int64_t>(s.tokens / 8, 1);  // of a chunk
    a.vocab_size = s.vocabulary;
    a.logits = rates.numbers(kType, a.rows * a.vocab_size);
    a.labels = rates.values(std::vector<int64_t>(static_cast<size_t>(a.rows), s.vocabulary / 2));
    a.ignored = -100;
    a.losses = static_cast<float*>(rates.memory(a.rows * 4));
    return a;
  });
}

void embedding(Rates& rates, const Shapes& s) {
  rates.measure("embedding, backward", &Kernels::embedding_gradient, [&] {
    EmbeddingGradient a;
    a.type = kType;
    a.tokens = std::min(s.tokens, s.vocabulary);
    a.columns = s.dim;
    a.rows = s.vocabulary;
    std::vector<int64_t> token_ids(static_cast<size_t>(a.tokens)), order(token_ids.size());
    for (size_t i = 0; i < token_ids.size(); ++i) {
      token_ids[i] = static_cast<int64_t>(i) * (s.vocabulary / a.tokens);  // all different: as many rows as can be
      order[token_ids.size() - 1 - i] = static_cast<int64_t>(i);
    }
    a.token_ids = rates.values(token_ids);
    a.order = rates.values(order);
    a.dy = rates.numbers(kType, a.tokens * s.dim);
    a.gradient = static_cast<float*>(rates.numbers(KernelType::fp32, s.vocabulary * s.dim));
    return a;
  });
}

void casts(Rates& rates, const Shapes& s) {
  const int64_t count = s.tokens * s.dim;
  rates.measure("float8 cast and transpose", &Kernels::float8_cast, [&] {
    return Float8Cast{kType,
                      KernelFloat8::e4m3,
                      s.tokens,
                      s.dim,
                      rates.numbers(kType, count),
                      KernelExtent::matrix,
                      rates.values(std::vector<float>{2}),
                      static_cast<uint8_t*>(rates.memory(count)),
                      static_cast<uint8_t*>(rates.memory(count))};
  });
  rates.measure("amax", &Kernels::amax, [&] {
    return Amax{kType,
                s.tokens,
                s.dim,
                KernelExtent::matrix,
                rates.numbers(kType, count),
                rates.values(std::vector<uint32_t>{0})};
  });
}

void optimizers(Rates& rates, const Shapes& s) {
  const int64_t count = s.dim * s.hidden;  // one of the large weights
  const AdamConstants constants{0.9f, 0.95f, 1e-8f, 1e-3f, 1.0f, 0.999f, 0.0f};
  const auto zeros = [&](int64_t bytes) {
    return rates.values(std::vector<unsigned char>(static_cast<size_t>(bytes)));
  };
  rates.measure("AdamW, fp32", &Kernels::adam, [&] {
    return AdamStep{static_cast<float*>(rates.numbers(KernelType::fp32, count)),
                    rates.numbers(KernelType::fp32, count),
                    reinterpret_cast<float*>(zeros(count * 4)),
                    reinterpret_cast<float*>(zeros(count * 4)),
                    count,
                    constants,
                    rates.values(std::vector<float>{1}),
                    rates.values(std::vector<float>{0})};
  });
  const auto bf16_step = [&](KernelType gradient) {
    Bf16AdamStep b;
    b.weight = rates.numbers(KernelType::bf16, count);
    b.gradient = rates.numbers(gradient, count);
    b.gradient_type = gradient;
    b.first = zeros(count * 2);
    b.second = zeros(count * 2);
    b.count = count;
    b.key = {1, 1};
    b.place = {0, count, 1};
    b.constants = constants;
    b.clip = rates.values(std::vector<float>{1});
    b.skip = rates.values(std::vector<float>{0});
    return b;
  };
  const auto squares = [&](KernelType type) {
    return ExactSquares{rates.numbers(type, count), count, rates.values(std::vector<int64_t>(kExactSlots, 0)), 0, type};
  };
  rates.measure("AdamW with stochastic rounding, bf16", &Kernels::bf16_adam,
                [&] { return bf16_step(KernelType::fp32); });
  rates.measure("AdamW with stochastic rounding, gradient in bf16", &Kernels::bf16_adam,
                [&] { return bf16_step(KernelType::bf16); });
  rates.measure("gradient norm", &Kernels::exact_squares, [&] { return squares(KernelType::fp32); });
  rates.measure("gradient norm, gradient in bf16", &Kernels::exact_squares, [&] { return squares(KernelType::bf16); });
}

int run(const std::vector<std::string>& words) {
  if (words.size() != 7) {
    std::fprintf(stderr, "usage: bench_kernel_rates cuda|cpu DIM HIDDEN HEADS KV_HEADS VOCABULARY TOKENS\n");
    return 64;
  }
  const auto number = [&](size_t i) { return static_cast<int64_t>(std::stoll(words[i])); };
  const Shapes shapes{number(1), number(2), number(3), number(4), number(5), number(6)};
  const bool on_gpu = words[0] == "cuda";
  FoundGpu found = on_gpu ? find_gpu_machine() : FoundGpu{make_host_machine(), {}};
  if (!found.machine) {
    std::fprintf(stderr, "error: there is no GPU to run kernels on: %s\n", found.why_not.c_str());
    return 69;
  }
  Rates rates(*found.machine, on_gpu);
  nlohmann::json result;
  result["machine"] = found.machine->name();
  result["copy_bytes_per_second"] = rates.copy_bytes_per_second();
  for (const auto& part : {norms, rotation, swiglu, embedding, loss, casts, optimizers}) part(rates, shapes);
  result["kernels"] = rates.kernels();
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) { return titan::run({words + 1, words + count}); }
