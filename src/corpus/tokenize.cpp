#include "titan/corpus/tokenize.h"

#include <fmt/format.h>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <vector>

#include "encode_pipeline.h"
#include "file_source.h"
#include "output_file.h"
#include "outputs.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/corpus/token_file.h"
#include "titan/corpus/vocabulary.h"
#include "token_source.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// Converts ids to the file's format.
void narrow(std::span<const int32_t> ids, int64_t token_bytes, std::string& bytes) {
  bytes.resize(ids.size() * static_cast<size_t>(token_bytes));
  if (token_bytes == 4) {
    std::memcpy(bytes.data(), ids.data(), bytes.size());
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(bytes.data());
  for (size_t i = 0; i < ids.size(); ++i) out[i] = static_cast<uint16_t>(ids[i]);
}

std::unique_ptr<FileSource> open_text(const Tokenization& wanted) {
  DatasetOptions dataset = wanted.dataset;
  if (dataset.path.empty()) throw Error(ExitCode::bad_config, "name the text with --dataset-path");
  dataset.holds_ids = wanted.ids.has_value();
  return open_file_source(dataset, find_text_files(dataset.path));
}

std::shared_ptr<const Tokenizer> vocabulary_of(const Tokenization& wanted) {
  if (!wanted.ids) {
    return open_vocabulary(wanted.tokenizer, std::cerr);
  }
  const GivenIds& ids = *wanted.ids;
  return std::make_shared<RecordedVocabulary>(ids.vocabulary, ids.bos, ids.eos, ids.maker);
}

/// The files of a corpus and their sizes, to report later which of them changed.
nlohmann::json sizes_in(const FileSource& source) {
  nlohmann::json sizes = nlohmann::json::object();
  for (const auto& [file, bytes] : source.file_sizes()) sizes[file.string()] = bytes;
  return sizes;
}

class TokenizeRun {
 public:
  TokenizeRun(const Tokenization& wanted, std::ostream& out)
      : wanted_(wanted),
        out_(out),
        source_(open_text(wanted)),
        tokenizer_(vocabulary_of(wanted)),
        facts_(facts_of(*tokenizer_)),
        file_(wanted.output,
              {{"corpus or text field", fmt::format("{:016x}", source_->fingerprint())},
               {"vocabulary", fmt::format("{:016x}", facts_.vocabulary_fingerprint)},
               {"tokenizer", facts_.tokenizer},
               {"policy for bad records", wanted.dataset.bad_record == BadRecord::skip ? "skip" : "error"}},
              sizes_in(*source_)) {}

  void run() {
    if (!wanted_.ids) source_->check_tokenizer(*tokenizer_);
    refuse_outputs_in_corpus(wanted_.dataset.path, {{wanted_.output, "--output"}});
    progress_ = file_.open(wanted_.overwrite, facts_.token_bytes);
    if (!file_.warning().empty()) out_ << "warning: " << file_.warning() << '\n';
    saved_tokens_ = progress_.tokens;
    if (progress_.tokens > 0) {
      out_ << fmt::format("resuming after {} documents, {} tokens\n", with_thousands(progress_.documents),
                          with_thousands(progress_.tokens));
    }
    source_->seek(progress_.next);
    print_notices();
    const int64_t threads = wanted_.threads > 0 ? wanted_.threads : default_encode_threads();
    try {
      encode_all(*source_, tokenizer_.get(), threads, [&](const EncodedDocuments& documents) { take(documents); });
    } catch (const Error&) {
      file_.save(progress_);  // the error may be temporary: the same command then resumes here
      throw;
    }
    print_notices();
    if (progress_.tokens == 0) {
      throw Error(ExitCode::bad_data, fmt::format("there is no document in {}; give a --dataset-path with text in it",
                                                  source_->description()));
    }
    file_.finish(progress_, facts_);
    report();
  }

 private:
  void take(const EncodedDocuments& documents) {
    TokenizeProgress next = progress_;
    for (const EncodedDocuments::Document& document : documents.documents) {
      if (!source_->accept(document.start, document.read)) {
        ++next.bad_records;
        continue;
      }
      next.invalid_utf8 += document.read.invalid_utf8;
      next.text_bytes += document.text_bytes;
      next.tokens += document.tokens;
      ++next.documents;
      file_.write_end(next.tokens);
    }
    narrow(documents.ids, facts_.token_bytes, bytes_);
    file_.write_ids(bytes_);
    next.next = documents.after;
    progress_ = next;
    if ((progress_.tokens - saved_tokens_) * facts_.token_bytes >= wanted_.save_bytes) {
      file_.save(progress_);
      saved_tokens_ = progress_.tokens;
      wanted_.on_saved();
    }
    if (Clock::now() - last_progress_ > std::chrono::seconds(10)) {
      last_progress_ = Clock::now();
      out_ << fmt::format("{} of text, {} tokens so far\n", human_bytes(static_cast<double>(progress_.text_bytes)),
                          with_thousands(progress_.tokens))
           << std::flush;
    }
  }

  void print_notices() {
    for (const std::string& notice : source_->take_notices()) out_ << "warning: " << notice << '\n';
  }

  void report() {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    out_ << fmt::format("wrote {}: {} documents, {} tokens of {} bytes, from {} of text in {}\n",
                        wanted_.output.string(), with_thousands(progress_.documents), with_thousands(progress_.tokens),
                        facts_.token_bytes, human_bytes(static_cast<double>(progress_.text_bytes)),
                        human_duration(seconds));
    if (progress_.bad_records > 0) {
      out_ << fmt::format("warning: {} bad records were left out\n", with_thousands(progress_.bad_records));
    }
    if (progress_.invalid_utf8 > 0) {
      out_ << fmt::format("warning: {} malformed UTF-8 sequences were replaced\n",
                          with_thousands(progress_.invalid_utf8));
    }
  }

  const Tokenization& wanted_;
  std::ostream& out_;
  std::unique_ptr<FileSource> source_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenFileFacts facts_;
  GrowingFile file_;
  TokenizeProgress progress_;
  int64_t saved_tokens_ = 0;
  std::string bytes_;
  Clock::time_point start_ = Clock::now(), last_progress_ = start_;
};

}  // namespace

void tokenize_corpus(const Tokenization& wanted, std::ostream& out) {
  if (wanted.output.extension() != ".bin") {
    throw Error(ExitCode::bad_config, fmt::format("--output {} must end in .bin", wanted.output.string()));
  }
  if (wanted.output.has_parent_path()) make_folders(wanted.output.parent_path());
  TokenizeRun(wanted, out).run();
}

}  // namespace titan
