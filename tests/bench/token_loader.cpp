// How fast batches come out of a .bin file, beside copying as many bytes: bench_token_loader FOLDER [BATCHES] prints
// "loader SECONDS memcpy SECONDS" of one pair. 8 × 8192, int64 tokens and labels; the memory of both is in use before.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "titan/corpus/vocabulary.h"
#include "titan/stream/batch_stream.h"

namespace {

constexpr int64_t kSamples = 8, kLength = 8192;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double load_batches(titan::BatchStream& stream, int64_t batches) {
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < batches; ++i) {
    std::optional<titan::StepBatch> batch = stream.next();
    if (!batch || batch->microbatches[0].tokens.size() != kSamples * kLength) std::abort();
    stream.recycle(std::move(*batch));
  }
  return seconds_since(start);
}

double copy_batches(std::vector<int64_t>& from, std::vector<int64_t>& to, int64_t batches) {
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < batches; ++i) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(int64_t));
    asm volatile("" : : "r"(to.data()) : "memory");
  }
  return seconds_since(start);
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::cerr << "bench_token_loader CORPUS.bin TOKENIZER [BATCHES]\n";
    return 64;
  }
  const int64_t batches = count > 3 ? std::atoll(words[3]) : 500;
  titan::DatasetOptions dataset;
  dataset.dataset = "text";
  dataset.path = words[1];
  titan::BatchPlan plan;
  plan.sequence_length = kLength;
  plan.local_batch = kSamples;
  titan::BatchStream stream(titan::open_dataset(dataset), titan::open_vocabulary(words[2]), plan, {});
  std::vector<int64_t> from(2 * kSamples * kLength, 1), to(2 * kSamples * kLength, 2);
  load_batches(stream, 50);
  copy_batches(from, to, 50);
  const double loader = load_batches(stream, batches);
  std::printf("loader %.6f memcpy %.6f\n", loader, copy_batches(from, to, batches));
}
