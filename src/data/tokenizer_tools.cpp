#include "titan/data/tokenizer_tools.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bpe_trainer.h"
#include "encode_pipeline.h"
#include "piece_splitter.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/data/tokenize.h"
#include "titan/data/utf8.h"
#include "token_source.h"

namespace titan {
namespace {

/// Opens the tokenizer and says on standard error what its files disagree about.
std::shared_ptr<const Tokenizer> open_with_notices(const std::filesystem::path& path) {
  std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(path);
  for (const std::string& notice : tokenizer->notices()) std::cerr << "warning: " << printable(notice) << '\n';
  return tokenizer;
}

std::string read_all(std::istream& in) {
  std::string text;
  std::array<char, 65536> block;
  while (in.read(block.data(), block.size()), in.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > kLongestText) refuse_long_text();
  }
  return text;
}

/// A token as readable text: in quotes, bytes other than printable ASCII as \xNN.
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

void refuse_long_text() {
  throw Error(ExitCode::bad_data, fmt::format("the text is longer than {}. For a corpus there is: titan_train data "
                                              "tokenize.",
                                              human_bytes(static_cast<double>(kLongestText))));
}

void train_tokenizer(const TokenizerTraining& training, std::ostream& out) {
  check_size(training.vocabulary_size);
  // Training takes long: report problems of the outputs before it starts.
  check_outputs(training);
  auto source = open_dataset(training.dataset);
  check_outputs_against_corpus(training);
  const int64_t most = training.most_bytes.value_or(INT64_MAX);
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
  if (more) out << "no more text than that was read (--bytes)\n";
  for (const std::string& notice : source->take_notices()) out << notice << '\n';
  if (int64_t bad = source->counters().bad_records; bad > 0) out << fmt::format("{} bad records were left out\n", bad);
}

void encode_stream(const std::filesystem::path& model, const TokenizerEncoding& encoding, std::istream& in,
                   std::ostream& out) {
  auto tokenizer = open_with_notices(model);
  std::string text = read_all(in);
  if (encoding.measure > 0) {
    measure_encoding(*tokenizer, encoding, text, out);
    return;
  }
  const std::vector<int32_t> ids = tokenizer->encode(text, encoding.bos, encoding.eos);
  for (std::span<const int32_t> rest = ids; !rest.empty();) {  // the text of all of them is longer than they are
    const std::span<const int32_t> some = rest.first(std::min<size_t>(rest.size(), 65536));
    rest = rest.subspan(some.size());
    out << fmt::format("{}", fmt::join(some, " ")) << (rest.empty() ? "" : " ");
  }
  out << '\n';
}

void decode_stream(const std::filesystem::path& model, std::istream& in, std::ostream& out) {
  auto tokenizer = open_with_notices(model);
  std::vector<int32_t> ids;
  std::istringstream words(read_all(in));
  for (std::string word; words >> word;) {
    int32_t id = 0;
    auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (problem != std::errc() || end != word.data() + word.size()) {
      throw Error(ExitCode::bad_data, fmt::format("\"{}\" is not a token id. Give whole numbers separated by spaces.",
                                                  printable(word.substr(0, 100))));
    }
    ids.push_back(id);
  }
  out << tokenizer->decode(ids);
}

void describe_tokenizer(const std::filesystem::path& model, std::ostream& out) {
  auto tokenizer = open_with_notices(model);
  out << fmt::format("{}\n", tokenizer->description());
  out << fmt::format("{:<12} {}\n{:<12} {}\n", "kind", tokenizer->name(), "ids",
                     with_thousands(tokenizer->vocabulary_size()));
  for (auto [label, id] : {std::pair("begin", tokenizer->bos_id()), std::pair("end", tokenizer->eos_id())}) {
    out << fmt::format(
        "{:<12} {}\n", label,
        id == Tokenizer::kNoId ? "none" : fmt::format("{} {}", id, printable(tokenizer->token_name(id))));
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

namespace {

constexpr size_t kShownCharacters = 300;
constexpr size_t kShownTokens = 32;

/// A histogram of lengths by powers of two.
class Lengths {
 public:
  void add(int64_t length) {
    ++count_;
    sum_ += length;
    longest_ = std::max(longest_, length);
    ++powers_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)))];
  }

  void show(const char* unit, std::ostream& out) const {
    if (count_ == 0) return;
    out << fmt::format("a document has {:.0f} {} on average, at most {}\n",
                       static_cast<double>(sum_) / static_cast<double>(count_), unit, with_thousands(longest_));
    int64_t below = 0;
    for (size_t power = 0; power < powers_.size() && below < count_; ++power) {
      if (powers_[power] == 0) continue;
      below += powers_[power];
      out << fmt::format("  {:5.1f} % below {:>12} {}\n",
                         100.0 * static_cast<double>(below) / static_cast<double>(count_),
                         with_thousands(int64_t{1} << power), unit);
    }
  }

 private:
  int64_t count_ = 0, sum_ = 0, longest_ = 0;
  std::array<int64_t, 64> powers_{};
};

void describe_ids(TokenFileSource& source, std::ostream& out) {
  const TokenFileFacts facts = source.facts();
  out << fmt::format("documents     {}\ntokens        {} of {} bytes\nvocabulary    {} ({} ids)\n",
                     with_thousands(facts.documents), with_thousands(facts.tokens), facts.token_bytes, facts.tokenizer,
                     with_thousands(facts.vocabulary));
  Lengths lengths;
  for (Document document; source.next(document);) lengths.add(static_cast<int64_t>(document.tokens->size));
  lengths.show("tokens", out);
}

void show_notices(DocumentSource& source, std::ostream& out) {
  for (const std::string& notice : source.take_notices()) out << "warning: " << notice << '\n';
}

void show_bad(const SourceCounters& counters, std::ostream& out) {
  if (counters.bad_records > 0) out << fmt::format("bad records   {}\n", with_thousands(counters.bad_records));
  if (counters.invalid_utf8 > 0) {
    out << fmt::format("bad UTF-8     {} sequences\n", with_thousands(counters.invalid_utf8));
  }
}

void describe_text(TextFileSource& source, const Tokenizer* tokenizer, std::ostream& out) {
  int64_t documents = 0, text_bytes = 0, tokens = 0, empty = 0;
  Lengths lengths;
  encode_all(source, tokenizer, default_encode_threads(), [&](const EncodedDocuments& some) {
    for (const EncodedDocuments::Document& document : some.documents) {
      if (!source.accept(document.start, document.read)) continue;
      ++documents;
      text_bytes += document.text_bytes;
      tokens += document.tokens;
      empty += document.text_bytes == 0 ? 1 : 0;
      lengths.add(tokenizer ? document.tokens : document.text_bytes);
    }
  });
  show_notices(source, out);
  out << fmt::format("on disk       {}\ndocuments     {}\ntext          {}\n",
                     human_bytes(static_cast<double>(source.file_bytes())), with_thousands(documents),
                     human_bytes(static_cast<double>(text_bytes)));
  if (tokenizer) {
    out << fmt::format("tokens        {} ({:.2f} bytes each)\n", with_thousands(tokens),
                       static_cast<double>(text_bytes) / static_cast<double>(std::max<int64_t>(1, tokens)));
  }
  if (empty > 0) out << fmt::format("empty         {} documents\n", with_thousands(empty));
  show_bad(source.counters(), out);
  lengths.show(tokenizer ? "tokens" : "bytes", out);
}

void describe_conversations(TextFileSource& source, std::ostream& out) {
  int64_t tokens = 0, labels = 0, conversations = 0;
  Lengths lengths;
  for (Document document; source.next(document); ++conversations) {
    const EncodedChat& chat = *document.chat;
    tokens += std::ssize(chat.ids);
    labels += std::count(chat.counts.begin(), chat.counts.end(), 1);
    lengths.add(std::ssize(chat.ids));
  }
  show_notices(source, out);
  out << fmt::format("on disk       {}\nconversations {}\ntokens        {}\nlabels        {} ({:.1f} %)\n",
                     human_bytes(static_cast<double>(source.file_bytes())), with_thousands(conversations),
                     with_thousands(tokens), with_thousands(labels),
                     100.0 * static_cast<double>(labels) / static_cast<double>(std::max<int64_t>(1, tokens)));
  show_bad(source.counters(), out);
  lengths.show("tokens", out);
}

/// On one line, with control characters escaped.
std::string as_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string beginning(const std::string& text) {
  const size_t end = advance_characters(text, 0, kShownCharacters);
  return as_json(text.substr(0, end)) + (end < text.size() ? " …" : "");
}

/// `counts`: the label mask; empty: no labels are shown.
void show_ids(std::span<const int32_t> ids, std::span<const uint8_t> counts, const Tokenizer& tokenizer,
              std::ostream& out) {
  for (size_t i = 0; i < std::min(ids.size(), kShownTokens); ++i) {
    const char* label = !counts.empty() && counts[i] ? "*" : "";
    out << fmt::format("{}{}{} {}", i == 0 ? "  " : " · ", ids[i], label, as_json(tokenizer.decode(ids.subspan(i, 1))));
  }
  out << (ids.size() > kShownTokens ? " …\n" : "\n");
}

/// The ids of a conversation that are labels.
std::vector<int32_t> labels_of(const EncodedChat& chat) {
  std::vector<int32_t> labels;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    if (chat.counts[i]) labels.push_back(chat.ids[i]);
  }
  return labels;
}

/// The corpus, and the tokenizer if one is named.
struct Inspected {
  explicit Inspected(const Inspection& wanted) {
    if (!wanted.tokenizer.empty()) tokenizer = open_with_notices(wanted.tokenizer);
    DatasetOptions dataset = wanted.dataset;
    if (!wanted.chat_template.empty()) {
      const ChatTemplateOptions options{.name = wanted.chat_template, .tokenizer = wanted.tokenizer};
      dataset.dataset = "chat";
      dataset.chat = std::make_shared<const ChatTemplate>(options, tokenizer);
    }
    source = open_dataset(dataset);
    if (tokenizer) source->check_tokenizer(*tokenizer);
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<DocumentSource> source;
};

}  // namespace

void describe_corpus(const Inspection& wanted, std::ostream& out) {
  const auto [tokenizer, source] = Inspected(wanted);
  out << fmt::format("corpus        {}\n", source->description());
  if (auto* ids = dynamic_cast<TokenFileSource*>(source.get())) return describe_ids(*ids, out);
  auto& text = dynamic_cast<TextFileSource&>(*source);
  wanted.chat_template.empty() ? describe_text(text, tokenizer.get(), out) : describe_conversations(text, out);
}

void show_documents(const Inspection& wanted, std::ostream& out) {
  const auto [tokenizer, source] = Inspected(wanted);
  Document document;
  for (int64_t shown = 0; shown < wanted.documents && source->next(document); ++shown) {
    std::vector<int32_t> ids, labels;
    if (document.chat) {
      ids = document.chat->ids, labels = labels_of(*document.chat);
      document.text = tokenizer->decode(ids);
    } else if (document.tokens) {
      document.tokens->append_to(ids);
      if (tokenizer) document.text = tokenizer->decode(ids);
    } else if (tokenizer) {
      tokenizer->encode_framed(document.text, true, true, ids);
    }
    const std::string place =
        document.tokens ? source->reading() : fmt::format("{}:{}", source->reading(), document.start.line);
    std::string tokens = ids.empty() ? "" : fmt::format(", {} tokens", with_thousands(std::ssize(ids)));
    if (document.chat) tokens += fmt::format(", {} labels", with_thousands(std::ssize(labels)));
    const std::string bytes =
        document.tokens || document.chat ? "" : fmt::format(", {} bytes", with_thousands(std::ssize(document.text)));
    out << fmt::format("{} (document {}{}{})\n", place, document.start.document, bytes, tokens);
    if (!document.tokens || tokenizer) out << "  " << beginning(document.text) << '\n';
    if (document.chat) out << "  labels " << beginning(tokenizer->decode(labels)) << '\n';
    if (tokenizer) show_ids(ids, document.chat ? document.chat->counts : std::vector<uint8_t>(), *tokenizer, out);
  }
  show_notices(*source, out);
}

namespace {

using Json = nlohmann::ordered_json;

/// The special tokens are vocabulary entries that no merge produces, not added tokens: added tokens would be matched in
/// text, while tiktoken reads text that looks like a special token as ordinary text.
Json vocabulary_of(std::span<const std::string> tokens, std::span<const std::string> special) {
  Json vocabulary = Json::object();
  auto add = [&](const std::string& token) {
    // Not operator[], which searches all earlier keys.
    vocabulary.get_ref<Json::object_t&>().emplace_back(to_byte_alphabet(token), vocabulary.size());
  };
  std::for_each(tokens.begin(), tokens.end(), add);
  std::for_each(special.begin(), special.end(), add);
  return vocabulary;
}

/// Adds BOS before every text, like Llama 3's own folder.
Json post_processor(size_t id, const std::string& begin) {
  auto special = [&](int type) { return Json{{"SpecialToken", {{"id", begin}, {"type_id", type}}}}; };
  auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", {special(0), text("A", 0)}},
          {"pair", {special(0), text("A", 0), special(1), text("B", 1)}},
          {"special_tokens", {{begin, {{"id", begin}, {"ids", Json::array({id})}, {"tokens", Json::array({begin})}}}}}};
}

Json tokenizer_json(std::span<const std::string> tokens, std::span<const std::string> special) {
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", PieceSplitter::expression_of(PieceSplitter::Rule::llama3)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"post_processor", post_processor(tokens.size(), special[0])},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", true},
            {"vocab", vocabulary_of(tokens, special)},
            {"merges", tiktoken_merges(tokens)}}}};
}

}  // namespace

void write_hugging_face_tokenizer(const std::filesystem::path& folder, std::span<const std::string> tokens,
                                  std::span<const std::string> special) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) {
    throw Error(ExitCode::storage,
                fmt::format("the tokenizer cannot be written: the folder {} cannot be made ({}). Name "
                            "one that can be with --hugging-face.",
                            folder.string(), problem.message()));
  }
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"bos_token", special[0]},
                       {"eos_token", special[1]},
                       {"clean_up_tokenization_spaces", false},
                       {"split_special_tokens", true}};  // else transformers matches these two in text
  write_file_atomically(folder / kHuggingFaceFiles[0], tokenizer_json(tokens, special).dump(1) + "\n");
  write_file_atomically(folder / kHuggingFaceFiles[1], config.dump(2) + "\n");
}

}  // namespace titan
