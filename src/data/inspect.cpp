#include "titan/data/inspect.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/data/encode_pipeline.h"
#include "titan/data/token_source.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

constexpr size_t kShownCharacters = 300;
constexpr size_t kShownTokens = 32;

/// Lengths by powers of two.
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

void describe_text(TextFileSource& source, const Inspection& wanted, const Tokenizer* tokenizer, std::ostream& out) {
  int64_t documents = 0, text_bytes = 0, tokens = 0, empty = 0;
  Lengths lengths;
  encode_all(source, wanted.dataset.text_field, tokenizer, default_encode_threads(), [&](const EncodedDocuments& some) {
    for (const EncodedDocuments::Document& document : some.documents) {
      if (!source.accept(document.start, document.read)) continue;
      ++documents;
      text_bytes += document.text_bytes;
      tokens += document.tokens;
      empty += document.text_bytes == 0 ? 1 : 0;
      lengths.add(tokenizer ? document.tokens : document.text_bytes);
    }
  });
  for (const std::string& notice : source.take_notices()) out << "warning: " << notice << '\n';
  const SourceCounters& counters = source.counters();
  out << fmt::format("on disk       {}\ndocuments     {}\ntext          {}\n",
                     human_bytes(static_cast<double>(source.file_bytes())), with_thousands(documents),
                     human_bytes(static_cast<double>(text_bytes)));
  if (tokenizer) {
    out << fmt::format("tokens        {} ({:.2f} bytes each)\n", with_thousands(tokens),
                       static_cast<double>(text_bytes) / static_cast<double>(std::max<int64_t>(1, tokens)));
  }
  if (empty > 0) out << fmt::format("empty         {} documents\n", with_thousands(empty));
  if (counters.bad_records > 0) out << fmt::format("bad records   {}\n", with_thousands(counters.bad_records));
  if (counters.invalid_utf8 > 0) {
    out << fmt::format("bad UTF-8     {} sequences\n", with_thousands(counters.invalid_utf8));
  }
  lengths.show(tokenizer ? "tokens" : "bytes", out);
}

/// On one line, and no control character reaches a terminal.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string beginning(const std::string& text) {
  const size_t end = advance_characters(text, 0, kShownCharacters);
  return quoted(text.substr(0, end)) + (end < text.size() ? " …" : "");
}

void show_ids(std::span<const int32_t> ids, const Tokenizer& tokenizer, std::ostream& out) {
  for (size_t i = 0; i < std::min(ids.size(), kShownTokens); ++i) {
    out << fmt::format("{}{} {}", i == 0 ? "  " : " · ", ids[i], quoted(tokenizer.decode(ids.subspan(i, 1))));
  }
  out << (ids.size() > kShownTokens ? " …\n" : "\n");
}

}  // namespace

void describe_corpus(const Inspection& wanted, std::ostream& out) {
  const std::unique_ptr<DocumentSource> source = open_dataset(wanted.dataset);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!wanted.tokenizer.empty()) tokenizer = open_tokenizer(wanted.tokenizer);
  out << fmt::format("corpus        {}\n", source->description());
  if (auto* ids = dynamic_cast<TokenFileSource*>(source.get())) {
    if (tokenizer) ids->check_tokenizer(*tokenizer);
    return describe_ids(*ids, out);
  }
  describe_text(dynamic_cast<TextFileSource&>(*source), wanted, tokenizer.get(), out);
}

void show_documents(const Inspection& wanted, std::ostream& out) {
  const std::unique_ptr<DocumentSource> source = open_dataset(wanted.dataset);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!wanted.tokenizer.empty()) {
    tokenizer = open_tokenizer(wanted.tokenizer);
    source->check_tokenizer(*tokenizer);
  }
  Document document;
  for (int64_t shown = 0; shown < wanted.documents && source->next(document); ++shown) {
    std::vector<int32_t> ids;
    if (document.tokens) {
      document.tokens->append_to(ids);
      if (tokenizer) document.text = tokenizer->decode(ids);
    } else if (tokenizer) {
      tokenizer->encode_framed(document.text, true, true, ids);
    }
    const std::string place =
        document.tokens ? source->reading() : fmt::format("{}:{}", source->reading(), document.start.line);
    const std::string tokens = ids.empty() ? "" : fmt::format(", {} tokens", with_thousands(std::ssize(ids)));
    const std::string bytes =
        document.tokens ? "" : fmt::format(", {} bytes", with_thousands(std::ssize(document.text)));
    out << fmt::format("{} (document {}{}{})\n", place, document.start.document, bytes, tokens);
    if (!document.tokens || tokenizer) out << "  " << beginning(document.text) << '\n';
    if (tokenizer) show_ids(ids, *tokenizer, out);
  }
  for (const std::string& notice : source->take_notices()) out << "warning: " << notice << '\n';
}

}  // namespace titan
