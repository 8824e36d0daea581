#include "titan/train/open_data.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "titan/base/process.h"
#include "titan/job/data_order.h"
#include "titan/stream/chunk_stream.h"
#include "titan/stream/megatron_order.h"

namespace titan {

std::shared_ptr<const ChatTemplate> open_chat_template(const JobConfig& config,
                                                       const std::shared_ptr<const Tokenizer>& tokenizer) {
  return std::make_shared<ChatTemplate>(make_chat_template(config), tokenizer);
}

std::unique_ptr<DocumentSource> open_training_documents(const JobConfig& config, const MeshPlace& place,
                                                        const Tokenizer& tokenizer) {
  DatasetOptions dataset = make_training_part(config, place);
  dataset.tokenizer = &tokenizer;
  return open_dataset(dataset);
}

std::unique_ptr<ChunkSource> open_training_chunks(const JobConfig& config, const MeshPlace& place,
                                                  const std::shared_ptr<const Tokenizer>& tokenizer,
                                                  const BatchOptions& options, std::string& description) {
  if (reads_in_megatron_order(config)) {
    MegatronOrderRequest order = make_training_order(config, place);
    order.memory = memory_left_bytes();
    auto samples = std::make_unique<MegatronStream>(open_training_documents(config, place, *tokenizer), tokenizer,
                                                    order, config.training.dataset);
    description = samples->description();
    return samples;
  }
  const bool mixed = config.training.dataset == "mixture";
  ChunkOptions chunks = chunk_options(make_batch_plan(config, place), options);
  if (mixed) chunks.chunks_needed = 1;  // a source's share of one batch may be less than a chunk
  std::vector<std::unique_ptr<ChunkSource>> streams;
  for (DatasetOptions& dataset : make_training_sources(config, place)) {
    if (mixed) chunks.dataset = fmt::format("mixture ({})", dataset.path);
    if (dataset.dataset == "chat") dataset.chat = open_chat_template(config, tokenizer);
    dataset.tokenizer = tokenizer.get();
    chunks.packing = make_packing(config, dataset.dataset);
    std::unique_ptr<DocumentSource> source = open_dataset(dataset);
    description += (description.empty() ? "" : ", ") + source->description();
    streams.push_back(std::make_unique<ChunkStream>(std::move(source), tokenizer, chunks));
  }
  if (!mixed) return std::move(streams.front());
  std::vector<double> weights;
  for (const MixtureSource& source : config.data.mixture) weights.push_back(source.weight);
  return std::make_unique<ChunkMixture>(std::move(streams), integer_weights(weights));
}

std::unique_ptr<ChunkSource> open_validation_chunks(const JobConfig& config, const MeshPlace& place,
                                                    const std::shared_ptr<const Tokenizer>& tokenizer,
                                                    const BatchOptions& options, std::string& description) {
  DatasetOptions dataset = make_validation_dataset(config);
  if (dataset.dataset == "chat") dataset.chat = open_chat_template(config, tokenizer);
  dataset.tokenizer = tokenizer.get();
  std::unique_ptr<DocumentSource> source = open_dataset(dataset);
  if (reads_in_megatron_order(config) && source->entry_index()) {
    const bool is_training_file = name_one_corpus(config.training.dataset_path.value_or(""), dataset.path);
    MegatronOrderRequest order = make_validation_order(config, place, is_training_file);
    order.memory = memory_left_bytes();
    auto samples = std::make_unique<MegatronStream>(std::move(source), tokenizer, order, dataset.dataset);
    description = fmt::format("{} of {}", is_training_file ? "the second part of data.megatron_split" : "all entries",
                              samples->description());
    return samples;
  }
  description = fmt::format("the documents of {}", source->description());
  return std::make_unique<ChunkStream>(std::move(source), tokenizer,
                                       chunk_options(make_validation_plan(config, place), options));
}

}  // namespace titan
