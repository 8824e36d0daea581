#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "cases.h"

namespace titan {
namespace {

struct Shape {
  KernelType type;
  int64_t tokens, columns, first, rows;
  int64_t vocab_size;  // tokens are in [0, vocab_size)
  size_t offset;       // of dy and the gradient behind a 16-byte boundary
};

std::vector<int64_t> some_tokens(const Shape& s) {
  std::mt19937_64 random(11);
  std::vector<int64_t> tokens(static_cast<size_t>(s.tokens));
  // Half of them are one token id, so that runs are long and short.
  for (int64_t& token : tokens)
    token = static_cast<int64_t>(random() % 2 == 0 ? static_cast<uint64_t>(s.first)
                                                   : random() % static_cast<uint64_t>(s.vocab_size));
  return tokens;
}

std::string run_gradient(KernelMachine& machine, const Shape& s) {
  const std::vector<int64_t> tokens = some_tokens(s);
  std::vector<int64_t> order(tokens.size()), token_ids;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  for (int64_t i : order) token_ids.push_back(tokens[static_cast<size_t>(i)]);
  const std::vector<double> dy = numbers(static_cast<size_t>(s.tokens * s.columns), 1, s.type);
  std::vector<double> expected = numbers(static_cast<size_t>(s.rows * s.columns), 2, KernelType::fp32);
  Numbers dy_in(machine, s.type, dy, s.offset);
  Numbers gradient(machine, KernelType::fp32, expected, s.offset);
  MachineArray<int64_t> token_ids_in(machine, token_ids), order_in(machine, order);
  const EmbeddingGradient a{s.type,          s.tokens,     s.columns,
                            s.first,         s.rows,       token_ids_in.data(),
                            order_in.data(), dy_in.data(), static_cast<float*>(gradient.data())};
  int64_t kept = 0;
  std::set<int64_t> distinct;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = tokens[i] - s.first;
    if (row < 0 || row >= s.rows) continue;
    ++kept;
    distinct.insert(row);
    for (int64_t c = 0; c < s.columns; ++c)
      expected[static_cast<size_t>(row * s.columns + c)] +=
          dy[i * static_cast<size_t>(s.columns) + static_cast<size_t>(c)];
  }
  Findings findings;
  machine.launch(&Kernels::embedding_gradient, a);
  findings.compare_traffic(machine, traffic(a, kept, static_cast<int64_t>(distinct.size())));
  findings.compare("gradient", gradient, expected, 1e-5, 8);
  if (!token_ids_in.guards_intact() || !order_in.guards_intact())
    findings.say("something was written beside the token ids");
  return findings.text();
}

std::vector<KernelCase> cases() {
  std::vector<KernelCase> result;
  for (KernelType type : {KernelType::fp32, KernelType::bf16}) {
    for (const Shape& s :
         {Shape{type, 1, 8, 0, 5, 5, 0}, Shape{type, 61, 24, 0, 13, 13, 0}, Shape{type, 61, 37, 0, 13, 13, 0},
          Shape{type, 40, 16, 0, 7, 7, 1}, Shape{type, 90, 1160, 5, 4, 20, 0}, Shape{type, 33, 131, 6, 7, 13, 1},
          Shape{type, 50, 16, 3, 1, 4, 0}, Shape{type, 9, 8, 20, 3, 20, 0}}) {
      result.push_back({"embedding_gradient_" + std::string(name(type)) + "_" + std::to_string(s.tokens) + "x" +
                            std::to_string(s.columns) + "_" + std::to_string(s.rows) + "_of_" +
                            std::to_string(s.vocab_size) + (s.offset ? "_unaligned" : ""),
                        [s](KernelMachine& machine) { return run_gradient(machine, s); }});
    }
  }
  return result;
}

const AddKernelCases added(cases());

}  // namespace
}  // namespace titan
