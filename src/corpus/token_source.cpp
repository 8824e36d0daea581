#include "token_source.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <ostream>

#include "file_source.h"
#include "marked_ids.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/corpus/vocabulary.h"

namespace titan {

TokenFileSource::TokenFileSource(std::string path, const std::vector<std::filesystem::path>& files,
                                 const Tokenizer* tokenizer)
    : path_(std::move(path)) {
  if (tokenizer) vocabulary_ = tokenizer->vocabulary_size();
  for (const std::filesystem::path& file : files) {
    files_.push_back(open_id_file(file));
    check_alike(*files_.back());
    first_.push_back(documents_);
    documents_ += files_.back()->facts().documents;
    if (std::string warning = files_.back()->warning(); !warning.empty()) notice(std::move(warning));
  }
}

void TokenFileSource::check_alike(const IdFile& file) const {
  const IdFile& first = *files_.front();
  const auto fail = [&](const std::string& one, const std::string& other, const char* remedy) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: {} holds {}, and {} {}. {}.", path_, first.path().filename().string(), one,
                            file.path().filename().string(), other, remedy));
  };
  if (file.format() != first.format()) {
    fail(first.format(), file.format(),
         "Name files of one program with a glob, or keep them in folders of their own and mix them with data.mixture");
  }
  if (file.facts().vocabulary_fingerprint != first.facts().vocabulary_fingerprint) {
    fail("ids of " + first.facts().tokenizer, "of " + file.facts().tokenizer, "Name files of one tokenizer");
  }
}

IdFacts TokenFileSource::facts() const {
  IdFacts facts{.documents = documents_};
  std::vector<std::string> types, makers;
  const auto add = [](std::vector<std::string>& to, const std::string& word) {
    if (!word.empty() && std::find(to.begin(), to.end(), word) == to.end()) to.push_back(word);
  };
  for (const auto& file : files_) {
    facts.tokens += file->facts().tokens;
    if (const auto entries = file->entries()) facts.entries = facts.entries.value_or(0) + *entries;
    add(types, std::string(name_of(file->type())));
    add(makers, file->facts().tokenizer);
  }
  facts.types = join(types, ", ");
  facts.vocabulary = join(makers, ", ");
  if (is_own()) facts.vocabulary += fmt::format(" ({} ids)", with_thousands(files_.front()->facts().vocabulary));
  return facts;
}

IdProbe TokenFileSource::probe() const {
  std::vector<MappedIds*> files;
  for (const auto& file : files_) {
    if (MappedIds* ids = file->unverified_ids()) files.push_back(ids);
  }
  return probe_ids(files);
}

std::string TokenFileSource::format() const {
  if (is_own()) return files_.front()->format();
  return fmt::format("{}, {}, {} documents", files_.front()->format(), facts().types, with_thousands(documents_));
}

std::string TokenFileSource::order() const { return is_own() ? "ids" : files_.front()->format(); }

bool TokenFileSource::next(Document& document) { return next_ < documents_ && read(next_++, document); }

size_t TokenFileSource::file_of(int64_t document) const {
  return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), document) - first_.begin()) - 1;
}

bool TokenFileSource::read(int64_t index, Document& document) {
  TITAN_CHECK(index >= 0 && index < documents_, index, documents_);
  const size_t file = file_of(index);
  reading_ = file;
  document.start = {};
  document.start.document = index;
  document.text.clear();
  document.tokens = files_[file]->document(index - first_[file]);
  if (document.tokens->unverified_place >= 0) document.tokens->vocabulary = vocabulary_;
  ++counters_.documents;
  return true;
}

EntryIndex* TokenFileSource::entry_index() {
  return files_.size() == 1 && files_.front()->entry_index() ? this : nullptr;
}

std::vector<int32_t> TokenFileSource::lengths() const { return files_.front()->entry_index()->lengths(); }

TokenView TokenFileSource::entry(int64_t index) {
  TokenView ids = files_.front()->entry_index()->entry(index);
  ids.vocabulary = vocabulary_;
  return ids;
}

void TokenFileSource::seek(const SourcePosition& start) {
  if (start.document < 0 || start.document > documents_) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: the saved position (document {}) is not in it", path_, start.document));
  }
  next_ = start.document;
}

std::string TokenFileSource::reading() const { return files_[reading_.load()]->path().string(); }

std::string TokenFileSource::place_of(const SourcePosition& start) const {
  return files_[file_of(start.document)]->path().string();
}

std::string TokenFileSource::description() const {
  const IdFacts all = facts();
  return fmt::format("{} ({}{} documents, {} tokens)", files_.size() == 1 ? files_[0]->path().string() : path_,
                     files_.size() == 1 ? "" : fmt::format("{} files, ", files_.size()), with_thousands(documents_),
                     with_thousands(all.tokens));
}

CorpusFiles TokenFileSource::file_sizes() const {
  CorpusFiles all;
  for (const auto& file : files_) {
    for (auto& part : file->files()) all.push_back(std::move(part));
  }
  return all;
}

uint64_t TokenFileSource::fingerprint() const {
  std::string what = is_own() ? "bin\n" : files_.front()->format() + "\n";
  for (const auto& file : files_) {
    const TokenFileFacts& facts = file->facts();
    what += fmt::format("{} {} {} {:x}\n", file->path().filename().string(), facts.documents, facts.tokens,
                        facts.vocabulary_fingerprint);
    if (!is_own()) what += fmt::format("{}\n", name_of(file->type()));
  }
  return name_key(what);
}

void TokenFileSource::check_ids(const IdProbe& probe, const Tokenizer& tokenizer) const {
  check_probe(probe, path_, is_own() ? "" : facts().vocabulary, tokenizer);
}

void TokenFileSource::check_described(const Tokenizer& tokenizer) const {
  if (!is_own()) return;
  const TokenFileFacts& facts = files_.front()->facts();
  if (facts.vocabulary_fingerprint == tokenizer.fingerprint()) return;
  throw Error(
      ExitCode::bad_data,
      fmt::format("corpus {}: {} holds ids of another vocabulary ({}, {} ids) than this run's tokenizer has ({}, "
                  "{} ids). Name the tokenizer it was made with, or the .bin file itself, in model.tokenizer_path, or "
                  "make it again with: titan_train data tokenize.",
                  path_, files_.front()->path().string(), facts.tokenizer, facts.vocabulary, tokenizer.description(),
                  tokenizer.vocabulary_size()));
}

std::shared_ptr<const Tokenizer> open_vocabulary(const std::filesystem::path& path) {
  std::error_code unreadable;
  const bool is_ids = text_form(path) == TextForm::ids && std::filesystem::is_regular_file(path, unreadable);
  if (is_ids && std::filesystem::exists(index_path(path))) {
    return std::make_shared<RecordedVocabulary>(TokenFile(path).facts());
  }
  if (is_ids && is_llm_c_file(path)) return std::make_shared<RecordedVocabulary>(llm_c_vocabulary(path));
  if (is_ids && is_indexed_elsewhere(path)) {
    fail_ids(
        path, "it does not say how many ids its tokenizer has, so it does not stand for one",
        "Name the tokenizer that made it in model.tokenizer_path; docs/data.md has the way out for one that is not "
        "read here");
  }
  return open_tokenizer(path);
}

std::shared_ptr<const Tokenizer> open_vocabulary(const std::filesystem::path& path, std::ostream& warnings) {
  std::shared_ptr<const Tokenizer> tokenizer = open_vocabulary(path);
  for (const std::string& notice : tokenizer->notices()) warnings << "warning: " << printable(notice) << '\n';
  return tokenizer;
}

RecordedVocabulary::RecordedVocabulary(int64_t size, int32_t bos, int32_t eos, const std::string& maker) {
  // Ids are int32 everywhere in the program.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (size < 1 || size > kMost) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("a vocabulary of {} ids {}: give the number of the tokenizer's ids with --vocab-size",
                    with_thousands(size),
                    size < 1 ? "is too small" : fmt::format("is too large, ids go up to {}", with_thousands(kMost))));
  }
  for (auto [option, id] : {std::pair("--bos", bos), std::pair("--eos", eos)}) {
    if (id == kNoId || (id >= 0 && id < size)) continue;
    throw Error(ExitCode::bad_config,
                fmt::format("{} {} is not an id of a vocabulary of {}: its ids are 0 to {}. Correct "
                            "it, or leave it out for a tokenizer without one",
                            option, id, size, size - 1));
  }
  facts_.vocabulary = size;
  facts_.bos = bos;
  facts_.eos = eos;
  facts_.tokenizer = fmt::format("Ids made elsewhere{}: #words {}, BOS ID {}, EOS ID {}",
                                 maker.empty() ? "" : " (" + maker + ")", size, shown_id(bos), shown_id(eos));
  facts_.vocabulary_fingerprint = name_key(fmt::format("ids\n{}\n{}\n{}\n{}", size, bos, eos, maker));
}

void RecordedVocabulary::encode_append(std::string_view, std::vector<int32_t>&) const {
  throw Error(ExitCode::bad_data,
              fmt::format("text cannot be encoded with the vocabulary of a .bin file ({}), which knows the ids but not "
                          "how text becomes them. Name the tokenizer itself, or give ids.",
                          facts_.tokenizer));
}

std::string RecordedVocabulary::decode(std::span<const int32_t> ids) const {
  for (int32_t id : ids) {
    if (id >= 0 && id < facts_.vocabulary) continue;
    throw Error(ExitCode::bad_data,
                fmt::format("token id {} is not in this vocabulary: its ids are 0 to {}", id, facts_.vocabulary - 1));
  }
  return fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace titan
