#include "titan/data/tokenize.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <vector>

#include "encode_pipeline.h"
#include "output_file.h"
#include "text_files.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/data/token_file.h"
#include "titan/data/tokenizer_tools.h"
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

std::unique_ptr<TextFileSource> open_text(const DatasetOptions& dataset) {
  if (dataset.path.empty()) throw Error(ExitCode::bad_config, "name the text with --dataset-path");
  return std::make_unique<TextFileSource>(dataset.path, dataset.text_field, dataset.bad_record);
}

std::shared_ptr<const Tokenizer> open_vocabulary(const Tokenization& wanted) {
  if (!wanted.ids) {
    std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(wanted.tokenizer);
    for (const std::string& notice : tokenizer->notices()) std::cerr << "warning: " << printable(notice) << '\n';
    return tokenizer;
  }
  const GivenIds& ids = *wanted.ids;
  return std::make_shared<RecordedVocabulary>(ids.vocabulary, ids.bos, ids.eos, ids.maker);
}

/// The files of a corpus and their sizes, to report later which of them changed.
nlohmann::json sizes_in(const TextFileSource& source) {
  nlohmann::json sizes = nlohmann::json::object();
  for (const auto& [file, bytes] : source.file_sizes()) sizes[file.string()] = bytes;
  return sizes;
}

class TokenizeRun {
 public:
  TokenizeRun(const Tokenization& wanted, std::ostream& out)
      : wanted_(wanted),
        out_(out),
        source_(open_text(wanted.dataset)),
        tokenizer_(open_vocabulary(wanted)),
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
      file_.save(progress_);  // the read error may be temporary
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
  std::unique_ptr<TextFileSource> source_;
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

namespace {

namespace fs = std::filesystem;

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;  // a missing file is never the same
  return fs::equivalent(a, b, ignored);
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : "."; }

/// Whether `file` is in or below the folder `top`, with links resolved and no hidden folder in between.
bool is_read_below(const fs::path& top, const fs::path& file) {
  std::error_code ignored;
  const fs::path way = fs::weakly_canonical(file, ignored).lexically_relative(fs::weakly_canonical(top, ignored));
  return !way.empty() &&
         std::none_of(way.begin(), way.end(), [](const fs::path& part) { return part.string().starts_with('.'); });
}

bool matches(const std::string& glob, const fs::path& file) {
  std::error_code ignored;
  const std::string pattern = fs::absolute(glob).lexically_normal().string();
  const auto fits = [&](const fs::path& spelled) {
    return ::fnmatch(pattern.c_str(), spelled.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
  };
  return fits(fs::absolute(file).lexically_normal()) || fits(fs::weakly_canonical(file, ignored));
}

/// Whether find_text_files would find `file` once it exists.
bool would_be_read(const std::string& path, const std::vector<fs::path>& files, const fs::path& file) {
  if (!fs::is_directory(path)) return matches(path, file);
  if (text_form(file) == TextForm::none || file.filename().string().starts_with('.')) return false;
  if (is_read_below(path, file)) return true;
  // `file` may be in a folder that is reached by a link out of the corpus folder.
  return std::any_of(files.begin(), files.end(),
                     [&](const fs::path& one) { return is_same(folder_of(one), folder_of(file)); });
}

void refuse_output(const std::string& path, const std::vector<fs::path>& files, const NamedOutput& output) {
  for (const fs::path& file : files) {
    if (!is_same(file, output.file)) continue;
    throw Error(ExitCode::bad_config, fmt::format("output {}: this is {}, which the command reads. Name another {}.",
                                                  output.file.string(), file.string(), output.option));
  }
  if (!would_be_read(path, files, output.file)) return;
  throw Error(ExitCode::bad_config, fmt::format("output {}: it would become a part of the corpus {}, and be read with "
                                                "it next time. Name a place outside with {}.",
                                                output.file.string(), path, output.option));
}

}  // namespace

void refuse_outputs_in_corpus(const std::string& path, const std::vector<NamedOutput>& outputs) {
  const std::vector<fs::path> files = find_text_files(path).files;
  for (const NamedOutput& output : outputs) refuse_output(path, files, output);
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_place(const fs::path& output, const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::storage,
              fmt::format("the tokenizer cannot be written: \"{}\" {}. {}.", output.string(), what, remedy));
}

/// Why no file can be created in the existing folder `folder`; empty if possible.
std::string closed(const fs::path& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("is in {}, which cannot be written to ({})", folder.string(), std::strerror(errno));
}

void check_file(const fs::path& output) {
  std::error_code ignored;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : ".";
  std::string what;
  if (!output.has_filename()) {
    what = "names no file";
  } else if (fs::is_directory(output, ignored)) {
    what = "is a folder";
  } else if (!fs::is_directory(folder, ignored)) {
    what = fmt::format("is in {}, which is not a folder", folder.string());
  } else if (!fs::is_other(fs::status(output, ignored))) {  // a device or a pipe is written directly
    what = closed(folder);
  }
  if (!what.empty()) refuse_place(output, what, "Name a file in a folder that is there with --output");
}

/// The folder and its parents need not exist.
void check_folder(const fs::path& wanted) {
  const std::string remedy = "Name a folder that is there or can be made with --hugging-face";
  std::error_code ignored;
  fs::path there = fs::absolute(wanted).lexically_normal();
  while (there.has_relative_path() && !fs::exists(fs::symlink_status(there, ignored))) there = there.parent_path();
  if (!fs::is_directory(there, ignored)) {
    const bool itself = fs::equivalent(there, wanted, ignored);
    refuse_place(wanted, itself ? "is not a folder" : fmt::format("is in {}, which is not a folder", there.string()),
                 remedy);
  }
  if (const std::string what = closed(there); !what.empty()) refuse_place(wanted, what, remedy);
}

void refuse_existing(const fs::path& output, std::string_view option) {
  std::error_code ignored;
  const bool there = fs::exists(fs::symlink_status(output, ignored));
  if (!there || fs::is_other(fs::status(output, ignored))) return;
  throw Error(ExitCode::bad_config, fmt::format("output {}: it is already there. Name another {}, or say --overwrite.",
                                                output.string(), option));
}

}  // namespace

void check_outputs(const TokenizerTraining& training) {
  check_file(training.output);
  if (!training.overwrite) refuse_existing(training.output, "--output");
  if (training.hugging_face.empty()) return;
  check_folder(training.hugging_face);
  for (const char* name : kHuggingFaceFiles) {
    const fs::path file = training.hugging_face / name;
    std::error_code ignored;
    if (fs::weakly_canonical(file, ignored) == fs::weakly_canonical(training.output, ignored)) {
      throw Error(ExitCode::bad_config, fmt::format("output {}: the folder of --hugging-face gets a file of this name. "
                                                    "Name another --output.",
                                                    training.output.string()));
    }
    if (!training.overwrite) refuse_existing(file, "--hugging-face");
  }
}

void check_outputs_against_corpus(const TokenizerTraining& training) {
  if (training.dataset.path.empty()) return;
  std::vector<NamedOutput> outputs{{training.output, "--output"}};
  for (const char* name : kHuggingFaceFiles) {
    if (!training.hugging_face.empty()) outputs.push_back({training.hugging_face / name, "--hugging-face"});
  }
  refuse_outputs_in_corpus(training.dataset.path, outputs);
}

}  // namespace titan
