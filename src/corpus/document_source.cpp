#include "titan/corpus/document_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "file_source.h"
#include "marked_ids.h"
#include "ordered_sources.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/text/tokenizer.h"
#include "token_source.h"

namespace titan {

std::vector<std::string> DocumentSource::take_notices() { return std::exchange(notices_, {}); }

void DocumentSource::check_tokenizer(const Tokenizer& tokenizer) const {
  if (tokenizer.reads_text()) return;
  throw Error(ExitCode::bad_data,
              fmt::format("corpus {} is text, and the tokenizer named is a .bin file, which knows its ids but not how "
                          "text becomes them. Give .bin files alone, for validation too, or name the tokenizer itself "
                          "in model.tokenizer_path.",
                          description()));
}

std::vector<std::string> dataset_names() { return {"c4", "c4_test", "c4_validation", "nanogpt", "text"}; }

bool DocumentSource::read(int64_t index, Document&) {
  throw InvariantError(fmt::format("document {} was asked for of a source that has no order but its own", index));
}

namespace {

std::unique_ptr<DocumentSource> open_ids(const DatasetOptions& options, const TextFiles& files) {
  const bool nanogpt = to_lower(options.dataset) == "nanogpt";
  std::unique_ptr<IdSource> source;
  if (nanogpt || is_llm_c_file(files.files.front())) {
    const auto maker = nanogpt ? MarkedIdSource::Maker::nanogpt : MarkedIdSource::Maker::llm_c;
    source = std::make_unique<MarkedIdSource>(options.path, files.files, maker, options.tokenizer);
  } else {
    source = std::make_unique<TokenFileSource>(options.path, files.files, options.tokenizer);
  }
  source->add_notices(notices_of(options.path, files));
  return source;
}

std::unique_ptr<DocumentSource> open_files(const DatasetOptions& options, TextFiles files) {
  if (options.chat) {
    const auto other = std::find_if(files.files.begin(), files.files.end(), [](const auto& file) {
      const TextForm form = text_form(file);
      return form != TextForm::records && form != TextForm::parquet;
    });
    if (other != files.files.end()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("dataset chat: {} holds no records. Give .jsonl or .parquet files of conversations, one "
                              "per line or row.",
                              other->string()));
    }
  } else if (text_form(files.files.front()) == TextForm::ids) {
    return open_ids(options, files);
  } else if (to_lower(options.dataset) == "nanogpt") {
    throw Error(ExitCode::bad_data, fmt::format("dataset nanogpt: {} is no .bin file. Give .bin files of nanoGPT.",
                                                files.files.front().string()));
  }
  return open_file_source(options, std::move(files));
}

/// As in torchtitan, c4_test is an in-memory dataset; all others are streamed.
std::unique_ptr<DocumentSource> open_split(const DatasetOptions& options, TextFiles files) {
  const int64_t ranks = options.split_ranks, rank = options.split_rank;
  if (to_lower(options.dataset) == "c4_test") {
    return std::make_unique<BlockSource>(open_files(options, std::move(files)), ranks, rank);
  }
  if (std::ssize(files.files) % ranks != 0) {
    return std::make_unique<StridedSource>(open_files(options, std::move(files)), ranks, rank);
  }
  std::vector<std::filesystem::path> mine;
  for (int64_t file = rank; file < std::ssize(files.files); file += ranks) {
    mine.push_back(files.files[static_cast<size_t>(file)]);
  }
  files.files = std::move(mine);
  return open_files(options, std::move(files));
}

}  // namespace

std::unique_ptr<DocumentSource> open_dataset(const DatasetOptions& options) {
  const std::string name = to_lower(options.dataset);
  const auto names = dataset_names();
  if (!options.chat && std::find(names.begin(), names.end(), name) == names.end()) {
    auto close = nearest(name, names, 1);
    throw Error(ExitCode::bad_data,
                fmt::format("Dataset {} is not supported. Supported datasets are: [{}].{}", options.dataset,
                            join(names, ", "), close.empty() ? "" : fmt::format(" Did you mean {}?", close[0])));
  }
  if (options.path.empty()) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("dataset {} needs dataset_path: nothing is downloaded here. Set it to a .txt, .jsonl, .parquet or "
                    ".bin file, a folder of them or a glob{}.",
                    name, name == "text" || name == "nanogpt" ? "" : fmt::format(" that holds your copy of {}", name)));
  }
  TextFiles files = find_text_files(options.path);
  if (options.split_ranks > 1) return open_split(options, std::move(files));
  std::unique_ptr<DocumentSource> source = open_files(options, std::move(files));
  if (!options.shuffle_seed) return source;
  return std::make_unique<ShuffledSource>(std::move(source), *options.shuffle_seed);
}

}  // namespace titan
