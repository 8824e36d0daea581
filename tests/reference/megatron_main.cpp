// The samples of data.order = "megatron" for tests/reference/megatron_order_test.py:
//   megatron_samples CORPUS SPLIT PART LENGTH SAMPLES SEED
// PART is 0 for training and 1 for validation; SAMPLES 0 asks for one epoch. Writes the ids of all samples that the
// order has, LENGTH + 1 each, as int32 to standard output.
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "src/corpus/token_source.h"
#include "titan/stream/megatron_order.h"

namespace {

void write_samples(char** words) {
  // Any id that Megatron-LM stores is in this vocabulary.
  const auto ids = std::make_shared<titan::RecordedVocabulary>(titan::kMostIds - 1, titan::Tokenizer::kNoId,
                                                               titan::Tokenizer::kNoId, "");
  titan::MegatronOrderRequest request;
  request.part = titan::parse_megatron_split(words[2])[std::stoul(words[3])];
  request.sequence_length = std::stoll(words[4]);
  if (const int64_t samples = std::stoll(words[5]); samples > 0) request.samples = samples;
  request.seed = static_cast<uint32_t>(std::stoul(words[6]));
  titan::DatasetOptions corpus{.dataset = "text", .path = words[1]};
  corpus.tokenizer = ids.get();
  titan::MegatronStream stream(titan::open_dataset(corpus), ids, request, "text");
  for (titan::Chunk chunk; stream.next(chunk);) {
    std::fwrite(chunk.tokens.data(), sizeof chunk.tokens[0], chunk.tokens.size(), stdout);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 7) throw std::invalid_argument("CORPUS SPLIT PART LENGTH SAMPLES SEED are needed");
    write_samples(words);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
