#include "titan/corpus/inspect.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "encode_pipeline.h"
#include "titan/base/text.h"
#include "titan/corpus/vocabulary.h"
#include "titan/text/utf8.h"
#include "token_source.h"

namespace titan {
namespace {

// Some lines of a terminal each: the samples of a corpus fit on a screen.
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

void show_ids_facts(const IdFacts& facts, std::ostream& out) {
  if (facts.documents) out << fmt::format("documents     {}\n", with_thousands(*facts.documents));
  if (facts.entries) out << fmt::format("entries       {}\n", with_thousands(*facts.entries));
  out << fmt::format("tokens        {} of {}\nvocabulary    {}\n", with_thousands(facts.tokens), facts.types,
                     facts.vocabulary.empty() ? "the files do not say" : facts.vocabulary);
}

void describe_ids(IdSource& source, const Tokenizer* tokenizer, std::ostream& out) {
  source.count_documents();
  show_ids_facts(source.facts(), out);
  Lengths lengths;
  IdProbe all;
  for (Document document; source.next(document);) {
    lengths.add(static_cast<int64_t>(document.tokens->size));
    // Those of this program are verified by their checksums.
    if (tokenizer && document.tokens->unverified_place >= 0) add_checked(all, *document.tokens);
  }
  lengths.show("tokens", out);
  if (!tokenizer) return;
  source.check_ids(all, *tokenizer);
  out << "every id is in the tokenizer's vocabulary\n";
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

void describe_text(FileSource& source, const Tokenizer* tokenizer, std::ostream& out) {
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

void describe_conversations(FileSource& source, std::ostream& out) {
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
  /// `samples_ids`: compares a sample of ids with the tokenizer, as a run does when it starts. Else the caller compares
  /// all of them.
  explicit Inspected(const Inspection& wanted, bool samples_ids = true) {
    if (!wanted.tokenizer.empty()) tokenizer = open_vocabulary(wanted.tokenizer, std::cerr);
    DatasetOptions dataset = wanted.dataset;
    if (!wanted.chat_template.empty()) {
      const ChatTemplateOptions options{.name = wanted.chat_template, .tokenizer = wanted.tokenizer};
      dataset.dataset = "chat";
      dataset.chat = std::make_shared<const ChatTemplate>(options, tokenizer);
    }
    dataset.tokenizer = tokenizer.get();
    source = open_dataset(dataset);
    if (!tokenizer) return;
    const auto* ids = dynamic_cast<const IdSource*>(source.get());
    ids && !samples_ids ? ids->check_described(*tokenizer) : source->check_tokenizer(*tokenizer);
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<DocumentSource> source;
};

}  // namespace

void describe_corpus(const Inspection& wanted, std::ostream& out) {
  const auto [tokenizer, source] = Inspected(wanted, /*samples_ids=*/false);
  out << fmt::format("corpus        {}\nformat        {}\n", source->description(), source->format());
  if (auto* ids = dynamic_cast<IdSource*>(source.get())) return describe_ids(*ids, tokenizer.get(), out);
  auto& text = dynamic_cast<FileSource&>(*source);
  wanted.chat_template.empty() ? describe_text(text, tokenizer.get(), out) : describe_conversations(text, out);
}

void describe_files(const Inspection& wanted, std::ostream& out) {
  const auto [tokenizer, source] = Inspected(wanted);
  out << fmt::format("corpus        {}\nformat        {}\n", source->description(), source->format());
  const CorpusFiles files = source->file_sizes();
  int64_t bytes = 0;
  for (const auto& [path, size] : files) bytes += size;
  out << fmt::format("files         {}\non disk       {}\n", with_thousands(std::ssize(files)),
                     human_bytes(static_cast<double>(bytes)));
  if (const auto* ids = dynamic_cast<const IdSource*>(source.get())) {
    show_ids_facts(ids->facts(), out);
    if (const IdProbe probe = ids->probe(); probe.ids > 0) {
      out << fmt::format("largest id    {} of {} looked at\n", with_thousands(probe.largest), with_thousands(probe.ids))
          << "as written    no id is added to a document or left out\n";
    }
  }
  show_notices(*source, out);
}

void show_documents(const Inspection& wanted, std::ostream& out) {
  const auto [tokenizer, source] = Inspected(wanted);
  out << fmt::format("{}: {}\n", source->description(), source->format());
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
    const std::string place = source->place_of(document.start);
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

}  // namespace titan
