#include "titan/data/text_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/data/json_escapes.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

/// How many bytes of `text`, at most `bound` < text.size(), make a document of their own.
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

}  // namespace

TextFileSource::TextFileSource(std::string path, std::string text_field, BadRecord bad_record, size_t largest_document)
    : path_(std::move(path)),
      text_field_(std::move(text_field)),
      bad_record_(bad_record),
      largest_document_(largest_document) {
  TextFiles found = find_text_files(path_);
  files_ = std::move(found.files);
  if (found.left_out > 0) {
    notice(fmt::format(
        "corpus {}: {} left out, such as {}", path_,
        found.left_out == 1 ? "1 file of another kind is" : fmt::format("{} files of other kinds are", found.left_out),
        found.left_out_example));
  }
  for (const auto& file : files_) sizes_.push_back(static_cast<int64_t>(std::filesystem::file_size(file)));
}

bool TextFileSource::next(Document& document) {
  while (position_.file < static_cast<int64_t>(files_.size())) {
    const auto& path = files_[static_cast<size_t>(position_.file)];
    reading_file_ = position_.file;
    if (!current_) current_ = std::make_unique<BufferedFile>(path, position_.byte);
    if (text_form(path) == TextForm::whole ? next_section(document) : next_record(document)) return true;
    current_.reset();
    position_ = {position_.document, position_.file + 1, 0, 1};
  }
  return false;
}

bool TextFileSource::next_section(Document& document) {
  std::string_view text = current_->peek(largest_document_ + 1);
  if (text.empty()) return false;
  size_t length = text.size() <= largest_document_ ? text.size() : section_length(text, largest_document_);
  document.text = text.substr(0, length);
  finish(document, length, std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), '\n'));
  repair(document.text);
  return true;
}

bool TextFileSource::next_record(Document& document) {
  while (true) {
    std::string_view line = current_->peek_line();
    if (line.empty()) return false;
    std::optional<std::string> text;
    if (line.find_first_not_of(" \t\r\n") != line.npos) text = parse_record(line);
    if (text) {
      document.text = std::move(*text);
      finish(document, line.size(), 1);
      return true;
    }
    current_->consume(line.size());
    position_.byte = current_->offset();
    ++position_.line;
  }
}

/// Notes where the document began and moves past it.
void TextFileSource::finish(Document& document, size_t bytes, int64_t lines) {
  document.start = position_;
  current_->consume(bytes);
  position_.byte = current_->offset();
  position_.line += lines;
  ++position_.document;
  ++counters_.documents;
}

/// The record's text; nothing when it is bad and to be skipped.
std::optional<std::string> TextFileSource::parse_record(std::string_view line) {
  std::string mended(line);
  repair(mended);
  std::string what;
  auto record = nlohmann::json::parse(mended, nullptr, /*allow_exceptions=*/false);
  if (int64_t repaired = record.is_discarded() ? repair_surrogate_escapes(mended) : 0; repaired > 0) {
    record = nlohmann::json::parse(mended, nullptr, /*allow_exceptions=*/false);
    if (!record.is_discarded()) counters_.invalid_utf8 += repaired;
  }
  if (record.is_discarded()) {
    what = "this line is no JSON";
  } else if (!record.is_object()) {
    what = fmt::format("this line is a JSON {}, not an object with the field \"{}\"", record.type_name(), text_field_);
  } else if (auto field = record.find(text_field_); field == record.end()) {
    what = fmt::format("this record has no field \"{}\"", text_field_);
  } else if (!field->is_string()) {
    what = fmt::format("the field \"{}\" of this record is no string but of type {}", text_field_, field->type_name());
  } else {
    return std::move(field->get_ref<std::string&>());
  }
  const std::filesystem::path& file = files_[static_cast<size_t>(position_.file)];
  std::string place = fmt::format("{}:{}", file.string(), position_.line);
  if (to_lower(file.extension().string()) == ".json") what += " (a .json file is read as one record per line)";
  if (bad_record_ == BadRecord::error) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("{}: {}. Mend or remove the line, name another field with data.text_field, or leave such records "
                    "out with data.bad_record = \"skip\".",
                    place, what));
  }
  if (counters_.bad_records == 0) notice(fmt::format("{}: {}; such records are skipped and counted", place, what));
  ++counters_.bad_records;
  return std::nullopt;
}

void TextFileSource::seek(const SourcePosition& start) {
  if (start.file < 0 || start.file > static_cast<int64_t>(files_.size()) || start.byte < 0) {
    throw Error(ExitCode::bad_data, fmt::format("corpus {}: the saved position (file {}, byte {}) is not in it", path_,
                                                start.file, start.byte));
  }
  position_ = start;
  current_.reset();
}

std::string TextFileSource::reading() const { return files_[static_cast<size_t>(reading_file_.load())].string(); }

std::string TextFileSource::description() const {
  if (files_.size() == 1) return files_[0].string();
  auto bytes = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
  return fmt::format("{} ({} files, {})", path_, files_.size(), human_bytes(static_cast<double>(bytes)));
}

uint64_t TextFileSource::fingerprint() const {
  std::string facts = fmt::format("{}\n{}\n", text_field_, largest_document_);
  for (size_t i = 0; i < files_.size(); ++i) facts += fmt::format("{} {}\n", files_[i].filename().string(), sizes_[i]);
  return name_key(facts);
}

}  // namespace titan
