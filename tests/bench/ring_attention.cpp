// One attention, forward and backward, timed: by one process on all threads, with this program's kernel or LibTorch's,
// or by two ranks of a ring on half of them each. scripts/bench/ring.py runs them in pairs.
//   bench_ring_attention single|libtorch|allgather|alltoall TOKENS HEADS HEAD_DIM THREADS
// prints the seconds of forward and backward; of a ring those of the slower rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "titan/distributed/mesh_communicators.h"
#include "titan/ops/context_parallel.h"

namespace titan {
namespace {

constexpr int64_t kRanks = 2;

struct Sizes {
  int64_t tokens, heads, head_dim, threads;
};

/// One attention's inputs and the gradient of its output.
class Attention {
 public:
  explicit Attention(const Sizes& sizes) : shape_{1, sizes.tokens, sizes.heads, sizes.head_dim} {
    for (at::Tensor* input : {&query_, &key_, &value_}) *input = at::randn(shape_).set_requires_grad(true);
    d_output_ = at::randn(shape_);
  }

  void run(const AttentionCore& core) const {
    ImmediateSink sink;
    UnitContext unit(UnitMode::train, RecomputePolicy::none(), sink);
    const at::Tensor output = core.forward(query_, key_, value_, {}, unit);
    torch::autograd::edge_list leaves;
    for (const at::Tensor* input : {&query_, &key_, &value_}) {
      leaves.push_back(torch::autograd::impl::gradient_edge(*input));
    }
    torch::autograd::Engine::get_default_engine().execute({torch::autograd::impl::gradient_edge(output)}, {d_output_},
                                                          /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, leaves);
  }

 private:
  std::vector<int64_t> shape_;
  at::Tensor query_, key_, value_, d_output_;
};

/// LibTorch's own, differentiated by it.
class LibtorchCore : public AttentionCore {
 public:
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const AttentionBounds&,
                     UnitContext&) const override {
    return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true)
        .transpose(1, 2);
  }
};

/// After a small one, which wakes threads and connections.
double seconds_of(const AttentionCore& core, const Sizes& sizes, Communicator* communicator) {
  at::set_num_threads(static_cast<int>(sizes.threads));
  Attention({256, sizes.heads, sizes.head_dim, sizes.threads}).run(core);
  const Attention attention(sizes);
  at::Tensor clock = at::zeros({1}, at::kDouble);
  if (communicator) communicator->all_reduce({clock})->wait();  // start together
  const auto start = std::chrono::steady_clock::now();
  attention.run(core);
  clock[0] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (communicator) communicator->all_reduce({clock}, Reduction::max)->wait();
  return clock.item<double>();
}

double seconds_of_rank(int64_t rank, Rotation rotation, const Sizes& sizes, const std::string& folder) {
  CommunicatorRequest request{.name = "cp", .instance = "", .interface = "lo", .rank = rank, .size = kRanks};
  auto context = std::make_shared<ContextParallel>();
  std::string refusal;
  context->communicator =
      make_host_communicator(c10::make_intrusive<c10d::FileStore>(folder + "/store", kRanks), request, refusal);
  if (!context->communicator) throw std::runtime_error(refusal);
  context->split = {kRanks};
  context->rotation = rotation;
  const Sizes mine{sizes.tokens / kRanks, sizes.heads, sizes.head_dim, sizes.threads / kRanks};
  return seconds_of(*make_attention_core(false, context), mine, context->communicator.get());
}

double seconds_of_ring(Rotation rotation, const Sizes& sizes) {
  std::string folder = "/tmp/titan-ring-XXXXXX";
  if (!::mkdtemp(folder.data())) throw std::runtime_error("no folder for the ranks to meet in");
  const pid_t child = ::fork();
  if (child == 0) {
    seconds_of_rank(1, rotation, sizes, folder);
    ::_exit(0);
  }
  const double seconds = seconds_of_rank(0, rotation, sizes, folder);
  ::waitpid(child, nullptr, 0);
  ::unlink((folder + "/store").c_str());
  ::rmdir(folder.c_str());
  return seconds;
}

double seconds_of_mode(const std::string& mode, const Sizes& sizes) {
  if (mode == "single") return seconds_of(*make_attention_core(false, nullptr), sizes, nullptr);
  if (mode == "libtorch") return seconds_of(LibtorchCore(), sizes, nullptr);
  return seconds_of_ring(mode == "alltoall" ? Rotation::all_to_all : Rotation::all_gather, sizes);
}

int run(const std::vector<std::string>& words) {
  if (words.size() != 5) {
    std::fputs("bench_ring_attention single|libtorch|allgather|alltoall TOKENS HEADS HEAD_DIM THREADS\n", stderr);
    return 64;
  }
  const Sizes sizes{std::stoll(words[1]), std::stoll(words[2]), std::stoll(words[3]), std::stoll(words[4])};
  std::printf("%.6f\n", seconds_of_mode(words[0], sizes));
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) { return titan::run({words + 1, words + count}); }
