#include "titan/corpus/corpus_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

struct Block {
  int64_t begin = 0, end = 0;
};

/// At most `count` evenly spaced blocks of a file of `bytes` bytes, including the first and the last.
std::vector<Block> sampled_blocks(int64_t bytes, size_t count) {
  const int64_t blocks = (bytes + kCorpusBlock - 1) / kCorpusBlock;
  const int64_t samples = std::min(blocks, static_cast<int64_t>(count));
  std::vector<Block> chosen;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t block = samples == 1 ? blocks - 1 : i * (blocks - 1) / (samples - 1);
    chosen.push_back({block * kCorpusBlock, std::min(bytes, (block + 1) * kCorpusBlock)});
  }
  return chosen;
}

/// 0 if the bytes cannot be read.
uint64_t hash_of(std::ifstream& file, const Block& block) {
  std::string bytes(static_cast<size_t>(block.end - block.begin), '\0');
  file.clear();
  file.seekg(block.begin);
  return file.read(bytes.data(), block.end - block.begin) ? name_key(bytes) : 0;
}

/// The file's name as valid UTF-8, which a saved position requires.
std::string name_of(const std::filesystem::path& path) {
  std::string name = path.filename().string();
  repair_utf8(name);
  return name;
}

uint64_t hash_with(uint64_t before, const std::pair<std::filesystem::path, int64_t>& file) {
  return name_key(fmt::format("{:x} {} {}", before, name_of(file.first), file.second));
}

/// The first byte range in which a file differs from its record.
std::optional<Block> first_change(const CorpusRecord::File& then, const std::filesystem::path& path, int64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<Block> blocks = sampled_blocks(then.bytes, then.samples.size());
  int64_t same = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].end > bytes || hash_of(file, blocks[i]) != then.samples[i]) return Block{same, blocks[i].end};
    same = blocks[i].end;
  }
  return bytes < then.bytes ? std::optional(Block{bytes, then.bytes}) : std::nullopt;
}

/// What is wrong with a file that changed; empty if its samples are as they were, also if it is longer.
std::string change_of(const CorpusRecord::File& then, const std::filesystem::path& path, int64_t bytes) {
  const std::string size = bytes == then.bytes ? ""
                                               : fmt::format("; it had {} bytes and has {}", with_thousands(then.bytes),
                                                             with_thousands(bytes));
  if (const std::optional<Block> change = first_change(then, path, bytes)) {
    return fmt::format("{} changed, first between its bytes {} and {}{}", path.string(), with_thousands(change->begin),
                       with_thousands(change->end), size);
  }
  return {};
}

}  // namespace

CorpusRecord record_corpus(const CorpusFiles& files, std::string order, uint64_t tokenizer) {
  CorpusRecord record{std::move(order), tokenizer, {}};
  repair_utf8(record.order);
  const size_t stride = (files.size() + kCorpusSamples - 1) / kCorpusSamples;
  uint64_t before = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [path, bytes] = files[i];
    const bool last = i + 1 == files.size();
    if (i % stride == 0 || last) {
      CorpusRecord::File file{static_cast<int64_t>(i), name_of(path), bytes, before, {}};
      const size_t samples = std::max<size_t>(last ? 8 : 1, kCorpusSamples / std::min(files.size(), kCorpusSamples));
      std::ifstream opened(path, std::ios::binary);
      for (const Block& block : sampled_blocks(bytes, samples)) file.samples.push_back(hash_of(opened, block));
      record.files.push_back(std::move(file));
    }
    before = hash_with(before, files[i]);
  }
  return record;
}

void refuse_corpus(const std::string& corpus, const std::string& what) {
  throw Error(
      ExitCode::bad_data,
      fmt::format("corpus {}: {}. A saved position fits only the corpus that it was saved from; put it back as it was, "
                  "or restart the data with checkpoint.exclude_from_loading = [\"dataloader\"].",
                  corpus, what));
}

void check_same_corpus(const CorpusRecord& then, const CorpusFiles& now, const std::string& corpus) {
  uint64_t before = 0;
  size_t reached = 0;
  std::string known = "the beginning";
  for (const CorpusRecord::File& file : then.files) {
    const auto index = static_cast<size_t>(file.index);
    if (index >= now.size()) {
      refuse_corpus(corpus, fmt::format("{} is missing: there were {} files or more, and there are {}", file.name,
                                        file.index + 1, now.size()));
    }
    for (; reached < index; ++reached) before = hash_with(before, now[reached]);
    const auto& [path, bytes] = now[index];
    const bool others = before != file.before;
    if (others || name_of(path) != file.name) {
      refuse_corpus(corpus, others ? fmt::format("the files between {} and {} changed", known, file.name)
                                   : fmt::format("{} is where {} was", path.string(), file.name));
    }
    std::string change = change_of(file, path, bytes);
    if (change.empty() && bytes != file.bytes) {
      change =
          fmt::format("{} grew from {} to {} bytes", path.string(), with_thousands(file.bytes), with_thousands(bytes));
    }
    if (!change.empty()) refuse_corpus(corpus, change);
    known = file.name;
  }
  const CorpusRecord::File& last = then.files.back();
  if (const size_t more = now.size() - static_cast<size_t>(last.index) - 1; more > 0) {
    refuse_corpus(corpus, fmt::format("it has {} more file{} after {}", more, more == 1 ? "" : "s", last.name));
  }
}

nlohmann::json to_json(const CorpusRecord& record) {
  const auto hex = [](uint64_t number) { return fmt::format("{:016x}", number); };
  nlohmann::json files = nlohmann::json::array();
  for (const CorpusRecord::File& file : record.files) {
    std::vector<std::string> samples;
    for (const uint64_t sample : file.samples) samples.push_back(hex(sample));
    files.push_back({{"index", file.index},
                     {"name", file.name},
                     {"bytes", file.bytes},
                     {"before", hex(file.before)},
                     {"samples", std::move(samples)}});
  }
  return {{"order", record.order}, {"tokenizer", hex(record.tokenizer)}, {"files", std::move(files)}};
}

CorpusRecord corpus_record_from_json(const nlohmann::json& json) {
  const auto number = [](const nlohmann::json& hex) { return std::stoull(hex.get<std::string>(), nullptr, 16); };
  CorpusRecord record{json.at("order").get<std::string>(), number(json.at("tokenizer")), {}};
  for (const nlohmann::json& saved : json.at("files")) {
    CorpusRecord::File file{saved.at("index").get<int64_t>(),
                            saved.at("name").get<std::string>(),
                            saved.at("bytes").get<int64_t>(),
                            number(saved.at("before")),
                            {}};
    if (file.index < 0 || file.bytes < 0) throw Error(ExitCode::bad_data, "the saved data state has a negative size");
    for (const nlohmann::json& sample : saved.at("samples")) file.samples.push_back(number(sample));
    record.files.push_back(std::move(file));
  }
  return record;
}

}  // namespace titan
