#include "titan/train/open_data.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "titan/stream/chunk_stream.h"

namespace titan {

std::shared_ptr<const ChatTemplate> open_chat_template(const JobConfig& config,
                                                       const std::shared_ptr<const Tokenizer>& tokenizer) {
  return std::make_shared<ChatTemplate>(make_chat_template(config), tokenizer);
}

std::unique_ptr<DocumentSource> open_training_documents(const JobConfig& config, const MeshPlace& place) {
  return open_dataset(make_training_part(config, place));
}

std::unique_ptr<ChunkSource> open_training_chunks(const JobConfig& config, const MeshPlace& place,
                                                  const std::shared_ptr<const Tokenizer>& tokenizer,
                                                  const BatchOptions& options, std::string& description) {
  const bool mixed = config.training.dataset == "mixture";
  ChunkOptions chunks = chunk_options(make_batch_plan(config, place), options);
  if (mixed) chunks.chunks_needed = 1;  // a source's share of one batch may be less than a chunk
  std::vector<std::unique_ptr<ChunkSource>> streams;
  for (DatasetOptions& dataset : make_training_sources(config, place)) {
    if (mixed) chunks.dataset = fmt::format("mixture ({})", dataset.path);
    if (dataset.dataset == "chat") dataset.chat = open_chat_template(config, tokenizer);
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

}  // namespace titan
