#include "text_files.h"

#include <fmt/format.h>
#include <algorithm>

#include "file_reader.h"
#include "json_array.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using namespace std::string_view_literals;

/// Length of the first section of `text`, at most `bound` < text.size() bytes, that becomes a document.
size_t section_length(std::string_view text, size_t bound) {
  std::string_view head = text.substr(0, bound);
  for (std::string_view mark : {"\n\n", "\n"}) {
    size_t at = head.rfind(mark);
    if (at != head.npos && at >= bound / 2) return at + mark.size();
  }
  size_t length = bound;
  for (int back = 0; back < 3 && length > 1 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80; ++back)
    --length;
  return length;
}

/// A line without a record; a line that is too long is not blank.
bool is_blank(const std::optional<std::string_view>& line) {
  return line && line->find_first_not_of(" \t\r\n") == line->npos;
}

/// Rejects UTF-16 and UTF-32 by their byte order mark, instead of reading it as garbage. Skips UTF-8's mark, which is
/// not part of the text.
std::unique_ptr<BufferedFile> open_file(const std::filesystem::path& path, int64_t byte) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  auto file = std::make_unique<BufferedFile>(path, byte);
  if (byte > 0) return file;
  if (packing_of(path) != Packing::none) refuse_text_kind(kind_of(file->peek(kKindBytes)), path);
  const std::string_view head = file->peek(4);
  const bool is_utf32 = head.starts_with("\xFF\xFE\0\0"sv) || head.starts_with("\0\0\xFE\xFF"sv);
  if (is_utf32 || head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("{0}: this is {1} text (it begins with its byte-order mark), and UTF-8 is read. Convert the "
                    "file: iconv -f {1} -t UTF-8 OLD > NEW.",
                    path.string(), is_utf32 ? "UTF-32" : "UTF-16"));
  }
  if (head.starts_with(kMark)) file->consume(kMark.size());
  return file;
}

/// The number of the line that begins at `byte`.
int64_t line_at(const std::filesystem::path& path, int64_t byte) {
  BufferedFile file(path, 0);
  int64_t line = 1;
  while (file.offset() < byte) {
    std::string_view bytes = file.peek(1);
    bytes = bytes.substr(0, static_cast<size_t>(byte - file.offset()));
    if (bytes.empty()) break;
    line += std::count(bytes.begin(), bytes.end(), '\n');
    file.consume(bytes.size());
  }
  return line;
}

}  // namespace

TextFileSource::TextFileSource(const std::string& path, std::string text_field, BadRecord bad_record,
                               size_t largest_document)
    : TextFileSource({.path = path, .text_field = std::move(text_field), .bad_record = bad_record},
                     find_text_files(path), largest_document) {}

TextFileSource::TextFileSource(DatasetOptions options, TextFiles files, size_t largest_document)
    : FileSource(std::move(options), std::move(files)), largest_document_(largest_document) {}

TextFileSource::~TextFileSource() = default;

void TextFileSource::close() { current_.reset(); }

bool TextFileSource::next_raw(RawDocument& raw) {
  while (position_.file < static_cast<int64_t>(files_.size())) {
    const auto& path = files_[static_cast<size_t>(position_.file)];
    reading_file_ = position_.file;
    if (!current_) open_current();
    raw.form = text_form(path);
    raw.too_long = false;
    raw.problem.clear();
    const bool found = raw.form == TextForm::whole ? next_section(raw)
                       : is_array_                 ? next_element(raw)
                                                   : next_record(raw);
    if (found) {
      ++position_.document;
      return true;
    }
    current_.reset();
    position_ = {position_.document, position_.file + 1, 0, 1};
  }
  return false;
}

void TextFileSource::open_current() {
  const auto file = static_cast<size_t>(position_.file);
  check_size(file);
  current_ = open_file(files_[file], position_.byte);
  is_array_ = text_form(files_[file]) == TextForm::records &&
              begins_with_array(position_.byte == 0 ? *current_ : *open_file(files_[file], 0));
  if (is_array_ && position_.byte == 0) position_.line += enter_array(*current_);
}

bool TextFileSource::next_section(RawDocument& raw) {
  const std::string_view text = current_->peek(largest_document_ + 1);
  if (text.empty()) return false;
  const size_t length = text.size() <= largest_document_ ? text.size() : section_length(text, largest_document_);
  raw.bytes = text.substr(0, length);
  raw.start = position_;
  current_->consume(length);
  position_.byte = current_->offset();
  position_.line += std::count(raw.bytes.begin(), raw.bytes.end(), '\n');
  return true;
}

bool TextFileSource::next_record(RawDocument& raw) {
  while (true) {
    const std::optional<std::string_view> line = current_->peek_line(kLongestLine);
    if (line && line->empty()) return false;
    const bool blank = is_blank(line);
    raw.start = position_;
    raw.too_long = !line;
    raw.bytes = line && !blank ? *line : std::string_view();
    line ? current_->consume(line->size()) : current_->skip_line();
    position_.byte = current_->offset();
    ++position_.line;
    if (!blank) return true;
  }
}

bool TextFileSource::next_element(RawDocument& raw) {
  int64_t lines_after = 0;
  ArrayElement element = read_element(*current_, kLongestLine, lines_after);
  if (element.state == ArrayElement::State::end) return false;
  raw.start = {position_.document, position_.file, element.offset, position_.line + element.lines};
  raw.too_long = element.state == ArrayElement::State::too_long;
  raw.bytes = std::move(element.bytes);
  raw.problem = std::move(element.problem);
  position_.byte = current_->offset();
  position_.line = raw.start.line + lines_after;
  if (!raw.problem.empty()) {  // behind a damaged element no one can tell where the next begins: go to the next file
    current_.reset();
    position_ = {position_.document, position_.file + 1, 0, 1};
  }
  return true;
}

std::string TextFileSource::place_of(const SourcePosition& start) const {
  const std::filesystem::path& file = files_[static_cast<size_t>(start.file)];
  return fmt::format("{}:{}", file.string(), start.line > 0 ? start.line : line_at(file, start.byte));
}

std::optional<int64_t> TextFileSource::count_documents() {
  if (documents_) return documents_;
  const bool packed =
      std::any_of(files_.begin(), files_.end(), [](const auto& file) { return packing_of(file) != Packing::none; });
  if (packed) return std::nullopt;
  begins_.resize(files_.size());
  arrays_.resize(files_.size());
  documents_ = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    find_documents(file);
    first_.push_back(*documents_);
    *documents_ += std::ssize(begins_[file]);
  }
  return documents_;
}

/// Finds where the documents of a file start.
void TextFileSource::find_documents(size_t file) {
  reading_file_ = static_cast<int64_t>(file);
  const std::unique_ptr<BufferedFile> opened = open_file(files_[file], 0);
  BufferedFile& bytes = *opened;
  const bool whole = text_form(files_[file]) == TextForm::whole;
  if (!whole && begins_with_array(bytes)) return find_elements(file, bytes);
  while (true) {
    const int64_t at = bytes.offset();
    if (whole) {
      const std::string_view text = bytes.peek(largest_document_ + 1);
      if (text.empty()) return;
      bytes.consume(text.size() <= largest_document_ ? text.size() : section_length(text, largest_document_));
      begins_[file].push_back(at);
      continue;
    }
    const std::optional<std::string_view> line = bytes.peek_line(kLongestLine);
    if (line && line->empty()) return;
    if (!is_blank(line)) begins_[file].push_back(at);
    line ? bytes.consume(line->size()) : bytes.skip_line();
  }
}

void TextFileSource::find_elements(size_t file, BufferedFile& bytes) {
  arrays_[file] = true;
  enter_array(bytes);
  int64_t lines = 0;
  while (true) {
    const ArrayElement element = read_element(bytes, kLongestLine, lines);
    if (element.state == ArrayElement::State::end) return;
    begins_[file].push_back(element.offset);
    if (!element.problem.empty()) return;
  }
}

bool TextFileSource::read(int64_t index, Document& document) {
  TITAN_CHECK(documents_ && index >= 0 && index < *documents_, index);
  const DocumentRange range = find_document(index, first_, begins_);
  const size_t file = range.file;
  const int64_t begin = range.begin, end = range.end.value_or(sizes_[file]);
  reading_file_ = static_cast<int64_t>(file);
  RawDocument raw;
  raw.form = text_form(files_[file]);
  raw.start = {index, static_cast<int64_t>(file), begin, /*line=*/0};
  if (arrays_[file]) {
    BufferedFile bytes(files_[file], begin);
    int64_t lines = 0;
    ArrayElement element = read_element(bytes, kLongestLine, lines);
    raw.too_long = element.state == ArrayElement::State::too_long;
    raw.bytes = std::move(element.bytes);
    raw.problem = std::move(element.problem);
    return take(std::move(raw), document);
  }
  if (!random_ || random_file_ != file) random_ = std::make_unique<FileReader>(files_[file]);
  random_file_ = file;
  raw.too_long = raw.form == TextForm::records && end - begin > static_cast<int64_t>(kLongestLine);
  if (!raw.too_long) {
    random_->skip(begin - random_->offset());
    raw.bytes.resize(static_cast<size_t>(end - begin));
    if (random_->read(raw.bytes.data(), raw.bytes.size()) < raw.bytes.size()) {
      fail_reading(files_[file], "the file shrank while it was read. Put it back and start again.");
    }
  }
  return take(std::move(raw), document);
}

std::string TextFileSource::format() const {
  const auto is_whole = [](const auto& file) { return text_form(file) == TextForm::whole; };
  const bool some = std::any_of(files_.begin(), files_.end(), is_whole);
  const bool all = std::all_of(files_.begin(), files_.end(), is_whole);
  return all ? "text" : some ? "text and JSON records" : "JSON records";
}

std::string TextFileSource::remedy_for_record() const {
  return options_.chat ? "Mend or remove the line" : "Mend or remove the line, name another field with data.text_field";
}

std::string TextFileSource::hint(size_t file, const std::string& problem) const {
  const std::filesystem::path name = unpacked_name(files_[file]);
  const bool is_json = problem.find("not JSON") != problem.npos && to_lower(name.extension().string()) == ".json";
  return is_json ? " (a .json file is read as one record per line, or as one array of records)" : "";
}

std::string TextFileSource::order() const {
  if (options_.chat) return "conversations";
  return fmt::format("text (field {}, documents of up to {} bytes)", options_.text_field, largest_document_);
}

uint64_t TextFileSource::fingerprint() const {
  return name_key(
      facts(fmt::format("{}\n{}\n", options_.chat ? "conversations" : options_.text_field, largest_document_)));
}

}  // namespace titan
