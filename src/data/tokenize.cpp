#include "titan/data/tokenize.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>

#include "file_reader.h"
#include "output_file.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/data/encode_pipeline.h"
#include "titan/data/token_file.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// How far the output has come; everything before is on the disk.
struct Progress {
  SourcePosition next;
  int64_t documents = 0, tokens = 0, bad_records = 0, invalid_utf8 = 0, text_bytes = 0;
};

/// The files of one output while it grows: ids, ends of documents, checksums of blocks, and how far all that goes.
class GrowingFile {
 public:
  GrowingFile(fs::path bin, nlohmann::json identity) : bin_(std::move(bin)), identity_(std::move(identity)) {}

  fs::path part(const char* what) const { return bin_.string() + what; }

  /// Takes up what an earlier run left, if it is of the same corpus and tokenizer; begins anew otherwise.
  Progress open(bool overwrite, int64_t token_bytes) {
    if (fs::exists(index_path(bin_)) && !overwrite) {
      refuse("it is already there", "Name another --output, or say --overwrite");
    }
    if (overwrite) remove_all();
    // Killed between the last two steps, the file has its name and no index.
    if (fs::exists(bin_) && fs::exists(part(".progress"))) rename_durably(bin_, part(".part"));
    if (fs::exists(bin_)) refuse("a file without an index is there", "Remove it, or say --overwrite");
    const std::optional<Progress> found = read_progress(token_bytes);
    const Progress progress = found.value_or(Progress());
    const int64_t written = progress.tokens * token_bytes;
    const int64_t whole = written / kTokenBlock * kTokenBlock;
    if (written > whole) {
      FileReader reader(part(".part"));
      reader.skip(whole);
      block_.resize(static_cast<size_t>(written - whole));
      reader.read(block_.data(), block_.size());
    }
    ids_ = std::make_unique<OutputFile>(part(".part"), written);
    ends_ = std::make_unique<OutputFile>(part(".ends.part"), progress.documents * int64_t{8});
    hashes_ = std::make_unique<OutputFile>(part(".hashes.part"), whole / kTokenBlock * 8);
    return progress;
  }

  void write_ids(std::string_view bytes) {
    ids_->write(bytes.data(), bytes.size());
    while (!bytes.empty()) {
      const size_t fits = std::min(bytes.size(), static_cast<size_t>(kTokenBlock) - block_.size());
      block_.append(bytes.substr(0, fits));
      bytes.remove_prefix(fits);
      if (std::ssize(block_) == kTokenBlock) write_hash();
    }
  }

  void write_end(int64_t tokens) {
    const auto end = static_cast<uint64_t>(tokens);
    ends_->write(&end, sizeof end);
  }

  void save(const Progress& progress) {
    ids_->sync();
    ends_->sync();
    hashes_->sync();
    nlohmann::json note = identity_;
    note["tokens"] = progress.tokens;
    note["documents"] = progress.documents;
    note["bad_records"] = progress.bad_records;
    note["invalid_utf8"] = progress.invalid_utf8;
    note["text_bytes"] = progress.text_bytes;
    note["next"] = {progress.next.document, progress.next.file, progress.next.byte, progress.next.line};
    write_file_atomically(part(".progress"), note.dump());
  }

  /// The end: name and index.
  void finish(const Progress& progress, TokenFileFacts facts) {
    if (!block_.empty()) write_hash();
    save(progress);
    ids_.reset();
    facts.documents = progress.documents;
    facts.tokens = progress.tokens;
    const std::string raw = read_file(part(".hashes.part"));
    std::vector<uint64_t> hashes(raw.size() / sizeof(uint64_t));
    std::memcpy(hashes.data(), raw.data(), hashes.size() * sizeof(uint64_t));
    rename_durably(part(".part"), bin_);
    write_token_index(bin_, facts, hashes, part(".ends.part"));
    for (const char* rest : {".progress", ".ends.part", ".hashes.part"}) fs::remove(part(rest));
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const {
    throw Error(ExitCode::bad_config, fmt::format("output {}: {}. {}.", bin_.string(), what, remedy));
  }

  void remove_all() {
    fs::remove(index_path(bin_));  // first: without it the rest is nothing
    for (const char* rest : {"", ".part", ".progress", ".ends.part", ".hashes.part"}) fs::remove(part(rest));
  }

  void write_hash() {
    const uint64_t hash = XXH3_64bits(block_.data(), block_.size());
    hashes_->write(&hash, sizeof hash);
    block_.clear();
  }

  std::optional<Progress> read_progress(int64_t token_bytes) const {
    if (!fs::exists(part(".progress"))) return std::nullopt;
    const nlohmann::json note = nlohmann::json::parse(read_file(part(".progress")), nullptr, false);
    for (const auto& [key, value] : identity_.items()) {
      if (note.is_object() && note.contains(key) && note.at(key) == value) continue;
      refuse(fmt::format("what lies in {} was begun with another {}", part(".part").filename().string(), key),
             "Give the command it was begun with, or say --overwrite to begin anew");
    }
    Progress progress;
    progress.tokens = note.at("tokens");
    progress.documents = note.at("documents");
    progress.bad_records = note.at("bad_records");
    progress.invalid_utf8 = note.at("invalid_utf8");
    progress.text_bytes = note.at("text_bytes");
    const nlohmann::json& next = note.at("next");
    progress.next = {next.at(0), next.at(1), next.at(2), next.at(3)};
    std::error_code ignored;
    const auto has = [&](const char* what, int64_t bytes) {
      return fs::exists(part(what), ignored) && static_cast<int64_t>(fs::file_size(part(what), ignored)) >= bytes;
    };
    const int64_t bytes = progress.tokens * token_bytes;
    const bool whole = has(".part", bytes) && has(".ends.part", progress.documents * int64_t{8}) &&
                       has(".hashes.part", bytes / kTokenBlock * 8);
    return whole ? std::optional(progress) : std::nullopt;
  }

  fs::path bin_;
  nlohmann::json identity_;
  std::string block_;  // the ids since the last whole block
  std::unique_ptr<OutputFile> ids_, ends_, hashes_;
};

/// Ids as they lie in the file.
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
  if (to_lower(dataset.dataset) == "stories") {
    throw Error(ExitCode::bad_config, "stories have no end and need no .bin file; name text files with --dataset-path");
  }
  if (dataset.path.empty()) throw Error(ExitCode::bad_config, "name the text with --dataset-path");
  return std::make_unique<TextFileSource>(dataset.path, dataset.text_field, dataset.bad_record);
}

class TokenizeRun {
 public:
  TokenizeRun(const Tokenization& wanted, std::ostream& out)
      : wanted_(wanted),
        out_(out),
        source_(open_text(wanted.dataset)),
        tokenizer_(open_tokenizer(wanted.tokenizer)),
        facts_(facts_of(*tokenizer_)),
        file_(wanted.output,
              {{"corpus", fmt::format("{:016x}", source_->fingerprint())},
               {"vocabulary", fmt::format("{:016x}", facts_.vocabulary_fingerprint)},
               {"tokenizer", facts_.tokenizer},
               {"policy for bad records", wanted.dataset.bad_record == BadRecord::skip ? "skip" : "error"}}) {}

  void run() {
    progress_ = file_.open(wanted_.overwrite, facts_.token_bytes);
    saved_tokens_ = progress_.tokens;
    if (progress_.tokens > 0) {
      out_ << fmt::format("going on after {} documents, {} tokens\n", with_thousands(progress_.documents),
                          with_thousands(progress_.tokens));
    }
    source_->seek(progress_.next);
    tell_notices();
    const int64_t threads = wanted_.threads > 0 ? wanted_.threads : default_encode_threads();
    try {
      encode_all(*source_, wanted_.dataset.text_field, tokenizer_.get(), threads,
                 [&](const EncodedDocuments& documents) { take(documents); });
    } catch (const Error&) {
      file_.save(progress_);  // whatever made reading fail may pass
      throw;
    }
    tell_notices();
    if (progress_.tokens == 0) {
      throw Error(ExitCode::bad_data, fmt::format("there is no document in {}", source_->description()));
    }
    file_.finish(progress_, facts_);
    report();
  }

 private:
  void take(const EncodedDocuments& documents) {
    Progress next = progress_;
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
    if (Clock::now() - told_ > std::chrono::seconds(10)) {
      told_ = Clock::now();
      out_ << fmt::format("{} of text, {} tokens so far\n", human_bytes(static_cast<double>(progress_.text_bytes)),
                          with_thousands(progress_.tokens))
           << std::flush;
    }
  }

  void tell_notices() {
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
  Progress progress_;
  int64_t saved_tokens_ = 0;
  std::string bytes_;
  Clock::time_point start_ = Clock::now(), told_ = start_;
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
