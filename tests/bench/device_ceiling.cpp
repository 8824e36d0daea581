// What a device can do in the calls of a model's training step, measured apart: every matrix product with the operands,
// result types and accumulation of training, all of them as one step runs them, attention by each kernel, and a copy.
// The list of products comes from the trace of a block and of the head, which the plan counts with, and each is called
// through LinearProducts, as the layers do.
//   bench_device_ceiling DEVICE DIM HIDDEN HEADS KV_HEADS LAYERS VOCABULARY TOKENS SEQUENCE bf16|float8
//                        [--seconds 0.2] [--together 2] [--chunks 8] [--gradients fp32|bf16]
// prints JSON lines:
//   {"product", "pass", "m", "k", "n", "count" in a step, "precision", "result", "accumulates", "fast_accumulation",
//    "in_training", "seconds", "tflops"}     float8 products also with the accumulation that training does not use, and
//                                            dense products that share an input also as one
//   {"attention", "pass", "seconds", "tflops"} or {"attention", "refused"}     of one layer, causal
//   {"product_seconds", "product_seconds_alone", "product_step_seconds", "attention_seconds", "attention_kernel",
//    "copy_bytes_per_second"}     the last line: of a whole step, products in its order; a copy reads and writes
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "bench/step_products.h"
#include "src/ops/attention_kernels.h"
#include "titan/gpu/cuda.h"
#include "titan/ops/float8_products.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;
using Work = std::function<void()>;

constexpr int kWarmUps = 2;
constexpr double kMostCalls = 2000;  // of one measurement, where a call takes no time (the mock GPU)

void print(const Json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

/// Seconds between the device's arrival at both ends of `work`.
double elapsed(const at::Device& device, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  double taken = 0;
  if (device.is_cpu()) {
    work();
    taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } else {
    const c10::impl::VirtualGuardImpl guard(device.type());
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(guard.getStream(device));
    work();
    end.record(guard.getStream(device));
    end.synchronize();
    taken = 1e-3 * begin.elapsedTime(end);
  }
  return std::max(taken, 1e-9);
}

/// Seconds of one of as many calls in a row as fill `seconds`.
double seconds_of_call(const at::Device& device, double seconds, const Work& work) {
  for (int run = 0; run < kWarmUps; ++run) work();
  const double calls = std::clamp(seconds / elapsed(device, work), 1.0, kMostCalls);
  const auto count = static_cast<int64_t>(calls);
  return elapsed(device,
                 [&] {
                   for (int64_t i = 0; i < count; ++i) work();
                 }) /
         static_cast<double>(count);
}

/// A matrix with its input and its output's gradient, in the forms that training multiplies.
class Operands {
 public:
  Operands(const StepProduct& product, const at::Device& device, at::ScalarType gradient_type)
      : in_float8_(product.in_float8),
        parameter_({product.matrix.name, {product.matrix.outputs, product.matrix.inputs}, {}, true}),
        products_(in_float8_ ? make_float8_products({}) : std::make_shared<DenseProducts>()) {
    const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
    const auto [outputs, inputs] = std::pair(product.matrix.outputs, product.matrix.inputs);
    weight_ = at::randn({outputs, inputs}, options).mul_(0.02);
    x_.data = at::randn({product.tokens, inputs}, options);
    dy_.data = at::randn({product.tokens, outputs}, options).mul_(1e-3);
    x_.type = dy_.type = at::kBFloat16;
    dy_.is_gradient = true;
    dx_ = at::zeros({product.tokens, inputs}, options);
    gradient_ = at::zeros({outputs, inputs}, options.dtype(gradient_type));
    if (in_float8_) {
      cast(x_, Float8Format::e4m3);
      cast(dy_, Float8Format::e5m2);
      Operand narrow{.data = weight_};
      cast(narrow, Float8Format::e4m3);
      weight_ = narrow.quantised;
      columns_ = narrow.transposed;
      parameter_.float8_scale = narrow.scale;
      parameter_.set_in_float8(true);
    }
    parameter_.set_weight(weight_);
    parameter_.set_gradient(gradient_);
  }

  void run(const StepProduct& product) {
    switch (product.pass) {
      case Pass::forward:
        products_->forward(x_, parameter_, nullptr);
        break;
      case Pass::input_gradient: {
        at::Tensor dx = product.accumulates ? dx_ : at::Tensor();
        products_->input_gradient(dy_, parameter_, columns_, dx);
        break;
      }
      case Pass::weight_gradient:
        if (!product.accumulates) parameter_.set_gradient(gradient_);  // which marks it as not written
        products_->weight_gradient(dy_, x_, parameter_);
        break;
    }
  }

  /// The float8 product of a pass with the accumulation that is asked for.
  void run_float8(Pass pass, bool fast) const {
    const Float8Side weight{weight_, parameter_.float8_scale}, columns{columns_, parameter_.float8_scale};
    if (pass == Pass::forward) {
      float8_product({x_.quantised, x_.scale}, weight, at::kBFloat16, fast, /*emulate=*/false);
    } else if (pass == Pass::input_gradient) {
      float8_product({dy_.quantised, dy_.scale}, columns, at::kBFloat16, fast, /*emulate=*/false);
    } else {
      float8_product({dy_.transposed, dy_.scale}, {x_.transposed, x_.scale}, at::kFloat, fast, /*emulate=*/false);
    }
  }

 private:
  static void cast(Operand& operand, Float8Format format) {
    const Float8Casts casts = make_aten_float8_casts();
    operand.scale = casts.scales({casts.amax(operand.data, Float8Extent::tensor)}, format, false)[0];
    const Float8Matrix made = casts.cast(operand.data, operand.scale.value, format, Float8Sides::both);
    operand.quantised = made.data;
    operand.transposed = made.transposed;
    operand.data.reset();
  }

  bool in_float8_;
  Parameter parameter_;
  std::shared_ptr<const LinearProducts> products_;
  Operand x_, dy_;
  at::Tensor weight_, columns_, dx_, gradient_;
};

struct Settings {
  at::Device device = at::kCPU;
  LlamaArguments model;
  TraceShape shape;
  double seconds = 0.2, together = 2;
  at::ScalarType gradient_type = at::kFloat;
};

class StepProducts {
 public:
  explicit StepProducts(const Settings& settings)
      : settings_(settings),
        blocks_(block_products(settings.model, settings.shape)),
        head_(head_products(settings.model, settings.shape)) {}

  /// Each alone; seconds of a step that they add up to.
  double measure_each() {
    double all = 0;
    for (const std::vector<StepProduct>* list : {&blocks_, &head_}) {
      for (const StepProduct& product : *list) {
        const bool fast = product.pass == Pass::forward;  // Float8Products
        const double seconds = measure(product, fast, [&] { operands_of(product).run(product); });
        if (product.in_training) all += seconds * static_cast<double>(product.count);
        show(product, fast, product.in_training, seconds);
        if (!product.in_float8) continue;
        const Work other = [&] { operands_of(product).run_float8(product.pass, !fast); };
        show(product, !fast, /*in_training=*/false, measure(product, !fast, other));
      }
    }
    return all;
  }

  /// Seconds of steps that make all products in a step's order.
  std::vector<double> measure_steps() {
    std::vector<double> steps;
    for (double spent = 0; spent < settings_.together && steps.size() < kMostCalls;) {
      const auto start = std::chrono::steady_clock::now();
      steps.push_back(elapsed(settings_.device, [&] { run_step(); }));
      spent += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return steps;
  }

 private:
  using Key = std::tuple<std::array<int64_t, 3>, Pass, bool, bool, bool>;

  Operands& operands_of(const StepProduct& product) {
    auto& operands = operands_[product.matrix.name];
    if (!operands) operands = std::make_unique<Operands>(product, settings_.device, gradient_type_of(product));
    return *operands;
  }

  /// The head adds up the gradients of its chunks, always in fp32.
  at::ScalarType gradient_type_of(const StepProduct& product) const {
    return product.matrix.name == head_[0].matrix.name ? at::kFloat : settings_.gradient_type;
  }

  /// Products of equal shapes are measured once.
  double measure(const StepProduct& product, bool fast, const Work& work) {
    const Key key{product.shape(), product.pass, product.in_float8, product.accumulates, fast};
    const auto found = measured_.find(key);
    if (found != measured_.end()) return found->second;
    return measured_[key] = seconds_of_call(settings_.device, settings_.seconds, work);
  }

  void show(const StepProduct& product, bool fast, bool in_training, double seconds) const {
    const auto [m, k, n] = product.shape();
    const bool wide = product.pass == Pass::weight_gradient && gradient_type_of(product) == at::kFloat;
    Json line{{"product", product.matrix.name}, {"pass", kPassNames[static_cast<size_t>(product.pass)]}};
    line.update({{"m", m}, {"k", k}, {"n", n}, {"count", product.count}});
    line.update({{"precision", product.in_float8 ? "float8" : "bf16"}, {"result", wide ? "fp32" : "bf16"}});
    line["accumulates"] = product.accumulates;
    if (product.in_float8) line["fast_accumulation"] = fast;
    line.update({{"in_training", in_training}, {"seconds", seconds}});
    line["tflops"] = 1e-12 * product.operations() / seconds;
    print(line);
  }

  void run_step() {
    for (int64_t layer = 0; layer < settings_.model.layers; ++layer) run_blocks(/*forward=*/true);
    for (int64_t chunk = 0; chunk < head_[0].count; ++chunk) {
      for (const StepProduct& product : head_) operands_of(product).run(product);
    }
    for (int64_t layer = 0; layer < settings_.model.layers; ++layer) run_blocks(/*forward=*/false);
  }

  void run_blocks(bool forward) {
    for (const StepProduct& product : blocks_) {
      if (product.in_training && (product.pass == Pass::forward) == forward) operands_of(product).run(product);
    }
  }

  const Settings& settings_;
  std::vector<StepProduct> blocks_, head_;
  std::map<std::string, std::unique_ptr<Operands>> operands_;
  std::map<Key, double> measured_;
};

/// Of one layer, forward and backward of one kernel apart; the sum.
double measure_attention(AttentionKernel kernel, const Settings& settings) {
  const LlamaArguments& a = settings.model;
  const TraceShape& shape = settings.shape;
  auto drawn = [&](int64_t heads) {
    const auto options = at::TensorOptions(settings.device).dtype(at::kBFloat16);
    return at::randn({shape.samples, shape.length, heads, a.head_dim}, options).transpose(1, 2);
  };
  const at::Tensor query = drawn(a.heads), key = drawn(a.kv_heads), value = drawn(a.kv_heads), dy = drawn(a.heads);
  DenseAttention made;
  const double forward = seconds_of_call(settings.device, settings.seconds,
                                         [&] { made = dense_attention(kernel, query, key, value, /*causal=*/true); });
  const double backward = seconds_of_call(settings.device, settings.seconds, [&] {
    dense_attention_backward(kernel, dy, query, key, value, made, /*causal=*/true);
  });
  // Two products forward and five backward, over half of all pairs.
  const double product = static_cast<double>(shape.tokens() * shape.length * a.heads * a.head_dim);
  for (const auto& [pass, seconds, products] :
       {std::tuple{"forward", forward, 2}, std::tuple{"backward", backward, 5}}) {
    print({{"attention", name(kernel)},
           {"pass", pass},
           {"seconds", seconds},
           {"tflops", 1e-12 * products * product / seconds}});
  }
  return forward + backward;
}

void add_attention(Json& result, const Settings& settings) {
  result["attention_seconds"] = nullptr;
  if (settings.device.is_cpu()) return;  // it has another kernel (tests/bench/ring_attention.cpp)
  const std::vector<KernelTiming> timings =
      time_kernels([&](AttentionKernel kernel) { return measure_attention(kernel, settings); });
  for (const KernelTiming& timing : timings) {
    if (!timing.refusal.empty()) print({{"attention", name(timing.kernel)}, {"refused", timing.refusal}});
  }
  const std::optional<AttentionKernel> chosen = choose_kernel(timings);
  if (!chosen) return;
  for (const KernelTiming& timing : timings) {
    if (timing.kernel != *chosen) continue;
    result["attention_seconds"] = timing.seconds * static_cast<double>(settings.model.layers);
    result["attention_kernel"] = name(*chosen);
  }
}

/// Of random bytes: zeros are copied faster on cards that compress or save power by data.
double copy_bytes_per_second(const Settings& settings) {
  const int64_t bytes = settings.device.is_cuda() ? int64_t{2} << 30 : int64_t{64} << 20;
  const auto options = at::TensorOptions(settings.device).dtype(at::kInt);
  const at::Tensor source = at::empty({bytes / 4}, options).random_();
  at::Tensor target = at::empty_like(source);
  const auto moved = 2.0 * static_cast<double>(bytes);
  return moved / seconds_of_call(settings.device, settings.seconds, [&] { target.copy_(source); });
}

Settings read_settings(const std::vector<std::string>& words) {
  Settings settings;
  if (words[0] == "cuda") settings.device = at::Device(at::kCUDA, 0);
  auto number = [&](size_t i) { return static_cast<int64_t>(std::stoll(words[i])); };
  LlamaArguments& a = settings.model;
  a.dim = number(1), a.hidden = number(2), a.heads = number(3), a.kv_heads = number(4), a.layers = number(5);
  a.vocabulary = number(6), a.head_dim = a.dim / a.heads;
  TraceShape& shape = settings.shape;
  shape.length = number(8), shape.samples = number(7) / shape.length, shape.element_size = 2;
  shape.on_gpu = settings.device.is_cuda(), shape.fused_kernels = shape.loss.in_place = shape.on_gpu;
  if (words[9] == "float8") {
    shape.float8 = Float8Recipe::tensorwise;
    for (const ParameterSpec& spec : llama_block_parameters(a, 0)) {
      if (spec.shape.size() == 2) shape.float8_parameters.push_back(spec.name);
    }
  }
  for (size_t i = 10; i < words.size(); i += 2) {
    if (words[i] == "--seconds") settings.seconds = std::stod(words.at(i + 1));
    if (words[i] == "--chunks") shape.loss.chunks = std::stoll(words.at(i + 1));
    if (words[i] == "--together") settings.together = std::stod(words.at(i + 1));
    if (words[i] == "--gradients" && words.at(i + 1) == "bf16") settings.gradient_type = at::kBFloat16;
  }
  return settings;
}

int run(const std::vector<std::string>& words) {
  const bool known = words.size() >= 10 && words.size() % 2 == 0;
  if (!known) {
    std::fprintf(stderr,
                 "usage: bench_device_ceiling DEVICE DIM HIDDEN HEADS KV_HEADS LAYERS VOCABULARY TOKENS SEQUENCE "
                 "bf16|float8 [--seconds 0.2] [--together 2] [--chunks 8] [--gradients fp32|bf16]\n");
    return 64;
  }
  const Settings settings = read_settings(words);
  if (settings.device.is_cuda() && !has_gpu()) {
    std::fprintf(stderr, "there is no GPU here\n");
    return 69;
  }
  Json result;
  {
    StepProducts products(settings);
    const double alone = products.measure_each();
    std::vector<double> steps = products.measure_steps();
    result["product_step_seconds"] = steps;
    std::nth_element(steps.begin(), steps.begin() + static_cast<int64_t>(steps.size()) / 2, steps.end());
    result["product_seconds"] = steps[steps.size() / 2];
    result["product_seconds_alone"] = alone;
  }
  add_attention(result, settings);
  result["copy_bytes_per_second"] = copy_bytes_per_second(settings);
  print(result);
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) { return titan::run({words + 1, words + count}); }
