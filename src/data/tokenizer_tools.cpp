#include "titan/data/tokenizer_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <istream>
#include <iterator>
#include <limits>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/data/bpe_trainer.h"
#include "titan/data/hugging_face_writer.h"
#include "titan/data/tiktoken_file.h"
#include "titan/data/tiktoken_tokenizer.h"
#include "tokenizer_outputs.h"

namespace titan {
namespace {

std::string read_all(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// An id as people can read it: the token in quotes, bytes that are no printable ASCII as \xNN.
std::string quoted(const std::string& bytes) {
  std::string text = "\"";
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    text += byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\' ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text + "\"";
}

void measure_encoding(const Tokenizer& tokenizer, const TokenizerEncoding& encoding, const std::string& text,
                      std::ostream& out) {
  for (int64_t i = 0; i < encoding.measure; ++i) {
    auto began = std::chrono::steady_clock::now();
    size_t tokens = tokenizer.encode(text, encoding.bos, encoding.eos).size();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    out << fmt::format("{} tokens  {:.6f} s  {:.2f} MB/s\n", tokens, seconds,
                       static_cast<double>(text.size()) / seconds / 1e6);
  }
}

void check_size(int64_t size) {
  constexpr int64_t kLeast = 256 + TiktokenTokenizer::kSpecialTokens, kMost = std::numeric_limits<int32_t>::max();
  if (size >= kLeast && size <= kMost) return;
  throw Error(ExitCode::bad_config,
              size < kLeast ? fmt::format("a vocabulary of {} is too small: 256 bytes and 256 special tokens make {}. "
                                          "Ask for at least that with --vocab-size.",
                                          size, kLeast)
                            : fmt::format("a vocabulary of {} is too large: ids go up to {}. Ask for less with "
                                          "--vocab-size.",
                                          with_thousands(size), with_thousands(kMost)));
}

}  // namespace

void train_tokenizer(const TokenizerTraining& training, std::ostream& out) {
  check_size(training.vocabulary_size);
  // Learning takes a while: what can be known to go wrong at its end is told before.
  check_outputs(training);
  auto source = open_dataset(training.dataset);
  check_outputs_against_corpus(training);
  const bool endless = makes_documents(training.dataset);
  const int64_t most = training.most_bytes.value_or(endless ? TokenizerTraining::kStoryBytes : INT64_MAX);
  BpeTrainer trainer;
  Document document;
  bool more = true;
  while (trainer.text_bytes() < most && (more = source->next(document))) {
    if (document.tokens) {
      throw Error(ExitCode::bad_data,
                  fmt::format("corpus {} holds ids, and a vocabulary is learned from text. Name the "
                              "text that they were made from.",
                              source->description()));
    }
    trainer.add(document.text);
  }
  const int64_t base = training.vocabulary_size - TiktokenTokenizer::kSpecialTokens;
  const std::vector<std::string> tokens = trainer.train(base);
  write_tiktoken_file(training.output, tokens);
  if (!training.hugging_face.empty()) {
    std::vector<std::string> special;
    for (int32_t i = 0; i < TiktokenTokenizer::kSpecialTokens; ++i) {
      special.push_back(TiktokenTokenizer::special_name(i));
    }
    write_hugging_face_tokenizer(training.hugging_face, tokens, special);
  }
  out << fmt::format("{}: {} tokens learned from {} of {} ({} different pieces), and 256 special tokens: {} in all\n",
                     training.output.string(), with_thousands(base),
                     human_bytes(static_cast<double>(trainer.text_bytes())), source->description(),
                     with_thousands(trainer.distinct_pieces()), with_thousands(training.vocabulary_size));
  if (more && !endless) out << "no more text than that was read (--bytes)\n";
  for (const std::string& notice : source->take_notices()) out << notice << '\n';
  if (int64_t bad = source->counters().bad_records; bad > 0) out << fmt::format("{} bad records were left out\n", bad);
}

void encode_stream(const std::filesystem::path& model, const TokenizerEncoding& encoding, std::istream& in,
                   std::ostream& out) {
  auto tokenizer = open_tokenizer(model);
  std::string text = read_all(in);
  if (encoding.measure > 0) {
    measure_encoding(*tokenizer, encoding, text, out);
    return;
  }
  auto ids = tokenizer->encode(text, encoding.bos, encoding.eos);
  out << fmt::format("{}\n", fmt::join(ids, " "));
}

void decode_stream(const std::filesystem::path& model, std::istream& in, std::ostream& out) {
  auto tokenizer = open_tokenizer(model);
  std::vector<int32_t> ids;
  for (std::string word; in >> word;) {
    int32_t id = 0;
    auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (problem != std::errc() || end != word.data() + word.size()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("\"{}\" is no token id. Give whole numbers separated by spaces.", word));
    }
    ids.push_back(id);
  }
  out << tokenizer->decode(ids);
}

void describe_tokenizer(const std::filesystem::path& model, std::ostream& out) {
  auto tokenizer = open_tokenizer(model);
  out << fmt::format("{}\n", tokenizer->description());
  out << fmt::format("{:<12} {}\n{:<12} {}\n", "kind", tokenizer->name(), "ids",
                     with_thousands(tokenizer->vocabulary_size()));
  for (auto [label, id] : {std::pair("begin", tokenizer->bos_id()), std::pair("end", tokenizer->eos_id())}) {
    out << fmt::format("{:<12} {}\n", label,
                       id == Tokenizer::kNoId ? "none" : fmt::format("{} {}", id, tokenizer->token_name(id)));
  }
  if (!tokenizer->reads_text()) return;
  std::vector<std::string> longest;
  for (int32_t id = 0; id < tokenizer->vocabulary_size(); ++id) {
    const std::string name = tokenizer->token_name(id);
    const bool special = name.starts_with('<') && name.ends_with('>');
    if (!special) longest.push_back(tokenizer->decode(std::span(&id, 1)));
  }
  std::stable_sort(longest.begin(), longest.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  longest.resize(std::min<size_t>(longest.size(), 5));
  std::transform(longest.begin(), longest.end(), longest.begin(), quoted);
  out << fmt::format("{:<12} {}\n", "longest", fmt::join(longest, " "));
}

}  // namespace titan
