#include "foreign_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "file_reader.h"
#include "marked_ids.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr int64_t kProbeBlocks = 64;  // more blocks are more random reads of a disk

bool is_file(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown);
}

/// A view of the id at `index` alone.
TokenView one_of(const TokenView& view, size_t index) {
  TokenView one = view;
  one.data = static_cast<const char*>(view.data) + index * static_cast<size_t>(size_of(view.type));
  one.size = 1;
  one.unverified_place += static_cast<int64_t>(index);
  return one;
}

/// Adds to the probe of a sample what `view` holds.
void add_to(IdProbe& probe, const TokenView& view) {
  probe.ids += static_cast<int64_t>(view.size);
  for (size_t i = 0; i < view.size; ++i) {
    const int64_t id = view.at(i);
    const bool is_larger = id > probe.largest;
    probe.largest = std::max(probe.largest, id);
    if ((id >= 0 && !is_larger) || (probe.worst && probe.worst->at(0) < 0)) continue;
    probe.worst = one_of(view, i);
  }
}

}  // namespace

void refuse_unknown_ids(const std::filesystem::path& bin) {
  std::string head(kKindBytes, '\0');
  head.resize(FileReader(bin).read(head.data(), head.size()));
  if (is_llm_c_questions(head)) {
    fail_ids(bin, "it holds the questions of llm.c's evaluations, which are no text to train on",
             "Name one of llm.c's files of ids");
  }
  if (kind_of(head) == FileKind::llm_c_ids) {
    fail_ids(bin, "it begins with a header of llm.c, and another file of this corpus does not",
             "Name files of one program with a glob, or keep them in folders of their own");
  }
  refuse_kind(kind_of(head), bin, ExitCode::bad_data);
  const std::filesystem::path theirs = megatron_index_path(bin);
  const std::string beside = is_file(theirs) ? fmt::format(
                                                   ", and {} is no index of Megatron-LM, which begins with "
                                                   "MMIDIDX",
                                                   theirs.filename().string())
                                             : "";
  fail_ids(
      bin, fmt::format("it has no index beside it ({}){}", index_path(bin).filename().string(), beside),
      "A .bin file comes from titan_train data tokenize, which writes the index last: give that command again, and "
      "it resumes where it stopped. Megatron-LM's has a .idx file beside it. One without any header, such as "
      "nanoGPT's train.bin, is read with training.dataset = \"nanogpt\"");
}

void MappedIds::set_layout(IdType type, int64_t offset) {
  TITAN_CHECK(offset >= 0 && offset % 8 == 0 && offset <= bytes(), offset, bytes());
  type_ = type;
  offset_ = offset;
  size_ = (bytes() - offset) / size_of(type);
}

TokenView MappedIds::view(int64_t first, int64_t count, const MappedFile* index) {
  TITAN_CHECK(first >= 0 && count >= 0 && count <= size_ && first <= size_ - count, first, count, size_);
  watch_.check(path_, file_, index);
  return {.data = file_.bytes() + offset_ + first * size_of(type_),
          .size = static_cast<size_t>(count),
          .type = type_,
          .vocabulary = kMostIds,
          .file = &path_,
          .unverified_place = first};
}

IndexedIdFile::IndexedIdFile(const std::filesystem::path& path, const std::filesystem::path& index)
    : IdFile(path), ids_(path), index_path_(index), index_(index) {}

TokenView IndexedIdFile::document(int64_t index) {
  TITAN_CHECK(index >= 0 && index < facts_.documents, index, facts_.documents);
  ids_.view(0, 0, &index_);  // throws if a file was written to; called before the index is read
  return part(begin_of(index), begin_of(index + 1));
}

TokenView IndexedIdFile::part(int64_t begin, int64_t end) {
  // The index was checked when the file was opened, but it is mapped, and another process may write to it.
  if (begin < 0 || end < begin || end > ids_.size()) {
    fail_changed(path_, "its index was written to while it was read");
  }
  return ids_.view(begin, end - begin, &index_);
}

CorpusFiles IndexedIdFile::files() const {
  return {{path_, ids_.bytes()}, {index_path_, static_cast<int64_t>(index_.size())}};
}

bool is_indexed_elsewhere(const std::filesystem::path& path) {
  if (to_lower(path.extension().string()) == ".ds") return true;
  return !is_file(index_path(path)) && file_kind_at(megatron_index_path(path)) == FileKind::megatron_index;
}

std::unique_ptr<IdFile> open_id_file(const std::filesystem::path& path) {
  if (to_lower(path.extension().string()) == ".ds") return open_datatrove_file(path);
  if (is_file(index_path(path))) return std::make_unique<TokenFile>(path);
  if (file_kind_at(megatron_index_path(path)) == FileKind::megatron_index) return open_megatron_file(path);
  refuse_unknown_ids(path);
}

IdProbe probe_ids(const std::vector<MappedIds*>& files) {
  const auto bytes_of = [](const MappedIds* ids) { return ids->size() * size_of(ids->type()); };
  const int64_t all = std::accumulate(files.begin(), files.end(), int64_t{0},
                                      [&](int64_t sum, const MappedIds* ids) { return sum + bytes_of(ids); });
  IdProbe probe;
  if (all == 0) return probe;
  const bool whole = all <= kProbeBytes;
  const int64_t blocks = whole ? 1 : kProbeBlocks, block = whole ? all : kProbeBytes / kProbeBlocks;
  int64_t before = 0;  // bytes of the files before `file`
  size_t file = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    int64_t at = blocks == 1 ? 0 : i * (all - block) / (blocks - 1);
    for (int64_t left = block; left > 0;) {
      while (at >= before + bytes_of(files[file])) before += bytes_of(files[file++]);
      const int64_t bytes = std::min(left, before + bytes_of(files[file]) - at);
      // A block may begin and end inside an id.
      const int64_t width = size_of(files[file]->type()), first = (at - before) / width;
      add_to(probe, files[file]->view(first, (at - before + bytes) / width - first));
      at += bytes;
      left -= bytes;
    }
  }
  return probe;
}

void add_checked(IdProbe& probe, const TokenView& view) {
  const TokenView::Outside outside = view.outside();
  probe.ids += static_cast<int64_t>(view.size);
  probe.outside += outside.count;
  if (outside.count > 0 && !probe.worst) probe.worst = one_of(view, outside.first);
}

void check_probe(const IdProbe& probe, const std::string& corpus, const std::string& maker,
                 const Tokenizer& tokenizer) {
  if (!probe.worst) return;
  const int64_t id = probe.worst->at(0);
  if (id >= 0 && id < tokenizer.vocabulary_size()) return;
  const std::string place = fmt::format("{} holds the id {} (its id {}, counted from 0)", probe.worst->file->string(),
                                        id, with_thousands(probe.worst->unverified_place));
  const std::string count = probe.outside > 0 ? fmt::format(" That is the first of {} such ids among {}.",
                                                            with_thousands(probe.outside), with_thousands(probe.ids))
                                              : "";
  if (id < 0 || id >= kMostIds) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("corpus {}: {}, and no tokenizer has such an id.{} Get the file again, or make it again with "
                    "the program that wrote it.",
                    corpus, place, count));
  }
  throw Error(ExitCode::bad_data,
              fmt::format("corpus {}: {}, and this run's tokenizer has {} ids ({}).{} Name the tokenizer that made the "
                          "file{} in model.tokenizer_path.",
                          corpus, place, with_thousands(tokenizer.vocabulary_size()), tokenizer.description(), count,
                          maker.empty() ? "" : fmt::format(" ({})", maker)));
}

}  // namespace titan
