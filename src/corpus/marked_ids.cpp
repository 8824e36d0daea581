#include "marked_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "file_source.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// llm.c's header: 256 int32, of which three are used.
struct LlmCHeader {
  int32_t magic = 0, version = 0, tokens = 0;
};
constexpr int64_t kLlmCHeaderBytes = 1024;
constexpr int32_t kLlmCQuestions = 20240522;

/// The two kinds of llm.c's files, by their header's first number.
struct LlmCKind {
  int32_t magic, version;
  IdType type;
  const char* model;
  int32_t vocabulary, bos, eos;
  int32_t mark;  ///< the first id of every document
};
constexpr std::array<LlmCKind, 2> kLlmCKinds{
    {{20240520, 1, IdType::uint16, "GPT-2", 50257, Tokenizer::kNoId, 50256, 50256},
     {20240801, 7, IdType::uint32, "Llama 3", 128256, 128000, 128001, 128000}}};

constexpr int32_t kLargestMark = std::numeric_limits<uint16_t>::max();  // of nanoGPT

const std::string kLlmCAgain = "Get the file again, or make it again with llm.c";

std::optional<LlmCHeader> header_in(std::string_view head) {
  LlmCHeader header;
  if (head.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, head.data(), sizeof header);
  return header;
}

/// Reads the header of a mapped file and compares it with the file.
const LlmCKind& read_llm_c(const MappedIds& ids) {
  const std::string_view head(ids.file().bytes(), ids.file().size());
  const std::optional<LlmCHeader> header = header_in(head);
  const auto kind = std::find_if(kLlmCKinds.begin(), kLlmCKinds.end(),
                                 [&](const LlmCKind& one) { return header && one.magic == header->magic; });
  if (kind == kLlmCKinds.end()) {
    fail_ids(ids.path(), "it does not begin with a header of llm.c, as another file of this corpus does",
             "Name files of one program with a glob, or keep them in folders of their own");
  }
  if (header->version != kind->version) {
    fail_ids(ids.path(),
             fmt::format("its header is llm.c's for {}, of version {}, and version {} is read", kind->model,
                         header->version, kind->version),
             kLlmCAgain);
  }
  const int64_t bytes = ids.bytes(), wanted = kLlmCHeaderBytes + int64_t{header->tokens} * size_of(kind->type);
  if (header->tokens < 0 || bytes != wanted) {
    fail_ids(ids.path(),
             fmt::format("its header says {} ids of {} bytes, and the file has {} bytes in all, {} of them for the "
                         "header",
                         with_thousands(header->tokens), size_of(kind->type), with_thousands(bytes),
                         with_thousands(kLlmCHeaderBytes)),
             kLlmCAgain);
  }
  return *kind;
}

/// A file of ids alone says nothing of itself, so whatever shows that it is another file counts.
void check_nanogpt(const MappedIds& ids) {
  const std::filesystem::path& path = ids.path();
  std::error_code unknown;
  if (is_llm_c_file(path) || is_indexed_elsewhere(path) || std::filesystem::exists(index_path(path), unknown)) {
    fail_ids(path, "it is no file of nanoGPT: it has a header or an index that says what it holds",
             "Read it with training.dataset = \"text\"");
  }
  // The magic numbers of these are so short that ids may begin with them.
  refuse_kind(file_kind_at(path), path, ExitCode::bad_data, {FileKind::gzip, FileKind::pickle, FileKind::lzma});
  if (ids.bytes() % size_of(IdType::uint16) == 0) return;
  fail_ids(path,
           fmt::format("it has {} bytes, and nanoGPT's files hold two bytes for each id", with_thousands(ids.bytes())),
           "Get the file again. If its ids are of another type, write them as JSON lines and give these to titan_train "
           "data tokenize --ids (docs/data.md)");
}

/// The place of `mark` in [begin, end), or `end`.
template <typename Id>
int64_t find_mark(const void* ids, int64_t begin, int64_t end, int32_t mark) {
  const auto* all = static_cast<const Id*>(ids);
  return std::find(all + begin, all + end, static_cast<Id>(mark)) - all;
}

}  // namespace

bool is_llm_c_questions(std::string_view head) {
  const std::optional<LlmCHeader> header = header_in(head);
  return header && header->magic == kLlmCQuestions && header->version == 1;
}

bool is_llm_c_file(const std::filesystem::path& path) {
  std::error_code unknown;
  return to_lower(path.extension().string()) == ".bin" && !std::filesystem::exists(index_path(path), unknown) &&
         !is_indexed_elsewhere(path) && file_kind_at(path) == FileKind::llm_c_ids;
}

TokenFileFacts llm_c_vocabulary(const std::filesystem::path& path) {
  const LlmCKind& kind = read_llm_c(MappedIds(path));
  TokenFileFacts facts;
  facts.token_bytes = size_of(kind.type);
  facts.vocabulary = kind.vocabulary;
  facts.bos = kind.bos;
  facts.eos = kind.eos;
  facts.tokenizer = fmt::format("{}'s ids, as a header of llm.c says: #words {}, BOS ID {}, EOS ID {}", kind.model,
                                kind.vocabulary, shown_id(kind.bos), shown_id(kind.eos));
  facts.vocabulary_fingerprint = name_key("llm.c\n" + facts.tokenizer);
  return facts;
}

MarkedIdSource::MarkedIdSource(std::string path, const std::vector<std::filesystem::path>& files, Maker maker,
                               const Tokenizer* tokenizer, int64_t longest_document)
    : path_(std::move(path)), maker_(maker), longest_document_(longest_document) {
  TITAN_CHECK(longest_document > 0, longest_document);
  if (tokenizer) vocabulary_ = tokenizer->vocabulary_size();
  if (maker == Maker::nanogpt) {
    if (!tokenizer) {
      throw Error(
          ExitCode::bad_data,
          fmt::format("corpus {}: files of nanoGPT do not say where documents end. Name the tokenizer that made "
                      "them, whose end-of-text id ends each, in model.tokenizer_path.",
                      path_));
    }
    mark_ = tokenizer->eos_id();
    of_ = "nanoGPT";
    if (mark_ > kLargestMark) {
      throw Error(ExitCode::bad_data,
                  fmt::format("corpus {}: files of nanoGPT hold ids up to {}, and the end-of-text id of this run's "
                              "tokenizer ({}) is {}. Name the tokenizer that made the files in model.tokenizer_path.",
                              path_, kLargestMark, tokenizer->description(), mark_));
    }
  }
  for (const std::filesystem::path& file : files) {
    MappedIds& ids = *files_.emplace_back(std::make_unique<MappedIds>(file));
    if (maker == Maker::nanogpt) {
      check_nanogpt(ids);
      ids.set_layout(IdType::uint16, 0);
      continue;
    }
    const LlmCKind& kind = read_llm_c(ids);
    ids.set_layout(kind.type, kLlmCHeaderBytes);
    if (files_.size() > 1 && kind.mark != mark_) {
      throw Error(ExitCode::bad_data,
                  fmt::format("corpus {}: {} holds ids of {}, and {} of llm.c ({}). Name files of one tokenizer.",
                              path_, files.front().filename().string(), of_, file.filename().string(), kind.model));
    }
    mark_ = kind.mark;
    of_ = fmt::format("llm.c ({})", kind.model);
  }
}

int64_t MarkedIdSource::end_of(MappedIds& file, int64_t begin) const {
  const int64_t end = begin + std::min(file.size() - begin, longest_document_);
  if (mark_ == Tokenizer::kNoId) return end;
  // llm.c's mark begins a document, nanoGPT's ends it.
  const int64_t from = maker_ == Maker::llm_c ? begin + 1 : begin;
  const void* ids = file.view(0, file.size()).data;
  const int64_t mark = file.type() == IdType::uint16 ? find_mark<uint16_t>(ids, std::min(from, end), end, mark_)
                                                     : find_mark<uint32_t>(ids, std::min(from, end), end, mark_);
  return maker_ == Maker::llm_c ? mark : std::min(mark + 1, end);
}

void MarkedIdSource::give(size_t file, int64_t begin, int64_t end, Document& document) {
  reading_ = file;
  document.text.clear();
  document.chat.reset();
  document.tokens = files_[file]->view(begin, end - begin);
  document.tokens->vocabulary = vocabulary_;
  ++counters_.documents;
}

bool MarkedIdSource::next(Document& document) {
  while (position_.file < std::ssize(files_)) {
    const auto file = static_cast<size_t>(position_.file);
    const int64_t begin = position_.byte / width();
    if (begin < files_[file]->size()) {
      const int64_t end = end_of(*files_[file], begin);
      document.start = position_;
      give(file, begin, end, document);
      position_.byte = end * width();
      ++position_.document;
      return true;
    }
    ++position_.file;
    position_.byte = 0;
  }
  return false;
}

void MarkedIdSource::seek(const SourcePosition& start) {
  const bool in_files = start.file >= 0 && start.file <= std::ssize(files_);
  const int64_t bytes =
      in_files && start.file < std::ssize(files_) ? files_[static_cast<size_t>(start.file)]->size() * width() : 0;
  if (!in_files || start.document < 0 || start.byte < 0 || start.byte > bytes || start.byte % width() != 0) {
    throw Error(ExitCode::bad_data, fmt::format("corpus {}: the saved position (file {}, byte {} of its ids) is not in "
                                                "it",
                                                path_, start.file, start.byte));
  }
  position_ = start;
}

std::optional<int64_t> MarkedIdSource::count_documents() {
  if (documents_) return documents_;
  int64_t documents = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    reading_ = file;
    first_.push_back(documents);
    std::vector<int64_t>& begins = begins_.emplace_back();
    for (int64_t at = 0; at < files_[file]->size(); at = end_of(*files_[file], at)) begins.push_back(at);
    documents += std::ssize(begins);
  }
  documents_ = documents;
  return documents_;
}

bool MarkedIdSource::read(int64_t index, Document& document) {
  TITAN_CHECK(documents_ && index >= 0 && index < *documents_, index);
  const DocumentRange range = find_document(index, first_, begins_);
  const size_t file = range.file;
  const int64_t begin = range.begin, end = range.end.value_or(files_[file]->size());
  document.start = {.document = index, .file = static_cast<int64_t>(file), .byte = begin * width()};
  give(file, begin, end, document);
  return true;
}

IdFacts MarkedIdSource::facts() const {
  IdFacts facts{.types = std::string(name_of(files_.front()->type())), .documents = documents_};
  for (const auto& file : files_) facts.tokens += file->size();
  return facts;
}

IdProbe MarkedIdSource::probe() const {
  std::vector<MappedIds*> files;
  for (const auto& file : files_) files.push_back(file.get());
  return probe_ids(files);
}

std::string MarkedIdSource::description() const {
  return fmt::format("{} ({}{} tokens)", files_.size() == 1 ? files_[0]->path().string() : path_,
                     files_.size() == 1 ? "" : fmt::format("{} files, ", files_.size()),
                     with_thousands(facts().tokens));
}

std::string MarkedIdSource::place_of(const SourcePosition& start) const {
  return files_[static_cast<size_t>(std::clamp<int64_t>(start.file, 0, std::ssize(files_) - 1))]->path().string();
}

std::string MarkedIdSource::format() const {
  const std::string documents =
      mark_ == Tokenizer::kNoId ? fmt::format("documents of {} ids, since the tokenizer has no end-of-text id",
                                              with_thousands(longest_document_))
                                : fmt::format("documents {} with {}", maker_ == Maker::llm_c ? "begin" : "end", mark_);
  return fmt::format("ids of {}, {}, {}", of_, facts().types, documents);
}

std::string MarkedIdSource::order() const { return fmt::format("ids of {}, documents by the id {}", of_, mark_); }

uint64_t MarkedIdSource::fingerprint() const {
  std::string what = fmt::format("marked ids\n{}\n{}\n", of_, mark_);
  for (const auto& file : files_) what += fmt::format("{} {}\n", file->path().filename().string(), file->size());
  return name_key(what);
}

CorpusFiles MarkedIdSource::file_sizes() const {
  CorpusFiles all;
  for (const auto& file : files_) all.emplace_back(file->path(), file->bytes());
  return all;
}

void MarkedIdSource::check_ids(const IdProbe& probe, const Tokenizer& tokenizer) const {
  check_probe(probe, path_, maker_ == Maker::llm_c ? of_ : "", tokenizer);
}

void MarkedIdSource::check_described(const Tokenizer& tokenizer) const {
  const bool marks = maker_ == Maker::nanogpt ? tokenizer.eos_id() == mark_
                                              : tokenizer.bos_id() == mark_ || tokenizer.eos_id() == mark_;
  if (!marks) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: it holds ids of {}, whose documents {} with the id {}, and in this run's "
                            "tokenizer ({}) no begin-of-text or end-of-text id is {}. Name the tokenizer that made the "
                            "file{} in model.tokenizer_path.",
                            path_, of_, maker_ == Maker::llm_c ? "begin" : "end", mark_, tokenizer.description(), mark_,
                            maker_ == Maker::llm_c ? ", or the .bin file itself," : ""));
  }
}

}  // namespace titan
