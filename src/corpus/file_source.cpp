#include "file_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "parquet_source.h"
#include "text_files.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {

DocumentRange find_document(int64_t index, const std::vector<int64_t>& first,
                            const std::vector<std::vector<int64_t>>& begins) {
  DocumentRange range;
  range.file = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), index) - first.begin()) - 1;
  const std::vector<int64_t>& in_file = begins[range.file];
  const auto inside = static_cast<size_t>(index - first[range.file]);
  range.begin = in_file[inside];
  if (inside + 1 < in_file.size()) range.end = in_file[inside + 1];
  return range;
}

FileSource::FileSource(DatasetOptions options, TextFiles found)
    : options_(std::move(options)), files_(std::move(found.files)) {
  options_.tokenizer = nullptr;  // valid only while a source is opened
  for (std::string& text : notices_of(options_.path, found)) notice(std::move(text));
  for (const auto& file : files_) {
    if (text_form(file) != TextForm::ids) continue;
    throw Error(ExitCode::bad_data, fmt::format("corpus {}: {} holds ids already. Name the text that it was made from.",
                                                options_.path, file.filename().string()));
  }
  for (const auto& file : files_) sizes_.push_back(static_cast<int64_t>(std::filesystem::file_size(file)));
}

RecordText read_text(RawDocument&& raw, const DatasetOptions& options) {
  if (raw.too_long) {
    return {{}, fmt::format("this line is longer than {}", human_bytes(kLongestLine)), 0};
  }
  if (!raw.problem.empty()) return {{}, std::move(raw.problem), 0};
  if (options.chat) return read_conversation(raw.bytes, *options.chat, options.ignore_fields);
  if (raw.form == TextForm::records) return read_record(raw.bytes, options.text_field);
  RecordText read{std::move(raw.bytes), {}, 0};
  read.invalid_utf8 = repair_utf8(*read.text);
  return read;
}

bool FileSource::next(Document& document) {
  for (RawDocument raw; next_raw(raw);) {
    if (take(std::move(raw), document)) return true;
  }
  return false;
}

bool FileSource::take(RawDocument&& raw, Document& document) {
  document.start = raw.start;
  document.tokens.reset();
  RecordText read = read_text(std::move(raw), options_);
  if (!accept(document.start, read)) return false;
  document.text = std::move(*read.text);
  document.chat = std::move(read.chat);
  return true;
}

/// A file that shrank after the start is as bad as one that shrinks during reading. A file that grew is read in its new
/// form; the next start detects it by the fingerprint.
void FileSource::check_size(size_t file) const {
  std::error_code gone;  // if it fails, so does opening the file, which says why
  const std::uintmax_t size = std::filesystem::file_size(files_[file], gone);
  if (gone || size >= static_cast<std::uintmax_t>(sizes_[file])) return;
  fail_reading(files_[file], fmt::format("the file shrank: it had {} bytes when the corpus was opened and now has {}. "
                                         "Leave the corpus alone while it is read; put the file back and start again.",
                                         with_thousands(sizes_[file]), with_thousands(static_cast<int64_t>(size))));
}

bool FileSource::accept(const SourcePosition& start, const RecordText& read) {
  counters_.invalid_utf8 += read.invalid_utf8;
  if (read.text) {
    ++counters_.documents;
    if (!read.unused.empty()) note_unused(start, read.unused);
    return true;
  }
  const std::string place = place_of(start);
  const std::string what = read.problem + hint(static_cast<size_t>(start.file), read.problem);
  if (options_.bad_record == BadRecord::error) {
    throw Error(ExitCode::bad_data,
                fmt::format("{}: {}. {}, or leave such records out with data.bad_record = \"skip\".", place, what,
                            remedy_for_record()));
  }
  if (counters_.bad_records == 0) notice(fmt::format("{}: {}; such records are skipped and counted", place, what));
  ++counters_.bad_records;
  return false;
}

/// Reports each field once.
void FileSource::note_unused(const SourcePosition& start, const std::vector<std::string>& fields) {
  constexpr size_t kMost = 50;  // keys that are data, such as names, must not fill the memory
  std::vector<std::string> fresh;
  for (const std::string& field : fields) {
    if (unused_.size() < kMost && unused_.insert(field).second) fresh.push_back(fmt::format("\"{}\"", field));
  }
  if (fresh.empty()) return;
  notice(fmt::format(
      "{}: this conversation has {}, which {} not used; if that is right, name {} in data.ignore_fields{}",
      place_of(start), join(fresh, ", "), fresh.size() == 1 ? "is" : "are", fresh.size() == 1 ? "it" : "them",
      unused_.size() == kMost ? " (more of such fields are not reported)" : ""));
}

void FileSource::seek(const SourcePosition& start) {
  if (start.file < 0 || start.file > static_cast<int64_t>(files_.size()) || start.byte < 0) {
    throw Error(ExitCode::bad_data, fmt::format("corpus {}: the saved position (file {}, byte {}) is not in it",
                                                options_.path, start.file, start.byte));
  }
  position_ = start;
  close();
}

std::string FileSource::reading() const { return files_[static_cast<size_t>(reading_file_.load())].string(); }

std::string FileSource::description() const {
  if (files_.size() == 1) return files_[0].string();
  return fmt::format("{} ({} files, {})", options_.path, files_.size(), human_bytes(static_cast<double>(file_bytes())));
}

CorpusFiles FileSource::file_sizes() const {
  CorpusFiles all;
  for (size_t i = 0; i < files_.size(); ++i) all.emplace_back(files_[i], sizes_[i]);
  return all;
}

int64_t FileSource::file_bytes() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}); }

std::string FileSource::facts(const std::string& fields) const {
  std::string facts = fields;
  for (size_t i = 0; i < files_.size(); ++i) facts += fmt::format("{} {}\n", files_[i].filename().string(), sizes_[i]);
  return facts;
}

std::string FileSource::hint(size_t, const std::string&) const { return {}; }

std::unique_ptr<FileSource> open_file_source(const DatasetOptions& options, TextFiles files) {
  // To a Parquet file, no name means the whole row.
  if (!options.chat && options.text_field.empty()) {
    throw Error(ExitCode::bad_config,
                "the name of the field that holds the text is empty. Name a field or column with data.text_field.");
  }
  if (text_form(files.files.front()) == TextForm::parquet) {
    return std::make_unique<ParquetSource>(options, std::move(files));
  }
  return std::make_unique<TextFileSource>(options, std::move(files));
}

}  // namespace titan
