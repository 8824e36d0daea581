#include "text_files.h"

#include <fmt/format.h>
#include <glob.h>
#include <algorithm>
#include <numeric>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

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

/// Rejects UTF-16 by its byte order mark, instead of reading it as garbage. Skips UTF-8's mark, which is not part of
/// the text.
std::unique_ptr<BufferedFile> open_file(const std::filesystem::path& path, int64_t byte) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  auto file = std::make_unique<BufferedFile>(path, byte);
  if (byte > 0) return file;
  const std::string_view head = file->peek(kMark.size());
  if (head.starts_with(kMark)) file->consume(kMark.size());
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("{}: this is UTF-16 text (it begins with its byte-order mark), and UTF-8 is read. Convert the "
                    "file: iconv -f UTF-16 -t UTF-8 OLD > NEW.",
                    path.string()));
  }
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
    : TextFileSource(path, find_text_files(path), std::move(text_field), bad_record, largest_document) {}

TextFileSource::TextFileSource(std::string path, TextFiles found, std::string text_field, BadRecord bad_record,
                               size_t largest_document, std::shared_ptr<const ChatTemplate> chat)
    : path_(std::move(path)),
      text_field_(std::move(text_field)),
      bad_record_(bad_record),
      largest_document_(largest_document),
      chat_(std::move(chat)) {
  files_ = std::move(found.files);
  if (found.left_out > 0) {
    notice(fmt::format(
        "corpus {}: {} left out, such as {}", path_,
        found.left_out == 1 ? "1 file of another kind is" : fmt::format("{} files of other kinds are", found.left_out),
        found.left_out_example));
  }
  for (const auto& file : files_) {
    if (text_form(file) != TextForm::ids) continue;
    throw Error(ExitCode::bad_data, fmt::format("corpus {}: {} holds ids already. Name the text that it was made from.",
                                                path_, file.filename().string()));
  }
  for (const auto& file : files_) sizes_.push_back(static_cast<int64_t>(std::filesystem::file_size(file)));
}

TextFileSource::~TextFileSource() = default;

RecordText read_text(RawDocument&& raw, const std::string& text_field, const ChatTemplate* chat) {
  if (raw.too_long) {
    return {{}, fmt::format("this line is longer than {}", human_bytes(TextFileSource::kLongestLine)), 0};
  }
  if (chat) return read_conversation(raw.bytes, *chat);
  if (raw.form == TextForm::records) return read_record(raw.bytes, text_field);
  RecordText read{std::move(raw.bytes), {}, 0};
  read.invalid_utf8 = repair_utf8(*read.text);
  return read;
}

bool TextFileSource::next(Document& document) {
  for (RawDocument raw; next_raw(raw);) {
    if (take(std::move(raw), document)) return true;
  }
  return false;
}

bool TextFileSource::take(RawDocument&& raw, Document& document) {
  document.start = raw.start;
  document.tokens.reset();
  RecordText read = read_text(std::move(raw), text_field_, chat_.get());
  if (!accept(document.start, read)) return false;
  document.text = std::move(*read.text);
  document.chat = std::move(read.chat);
  return true;
}

bool TextFileSource::next_raw(RawDocument& raw) {
  while (position_.file < static_cast<int64_t>(files_.size())) {
    const auto& path = files_[static_cast<size_t>(position_.file)];
    reading_file_ = position_.file;
    if (!current_) {
      check_size(static_cast<size_t>(position_.file));
      current_ = open_file(path, position_.byte);
    }
    raw.form = text_form(path);
    raw.too_long = false;
    if (raw.form == TextForm::whole ? next_section(raw) : next_record(raw)) {
      ++position_.document;
      return true;
    }
    current_.reset();
    position_ = {position_.document, position_.file + 1, 0, 1};
  }
  return false;
}

/// A file that shrank after the start is as bad as one that shrinks during reading. A file that grew is read in its new
/// form; the next start detects it by the fingerprint.
void TextFileSource::check_size(size_t file) const {
  std::error_code gone;  // opening the file reports the error
  const std::uintmax_t size = std::filesystem::file_size(files_[file], gone);
  if (gone || size >= static_cast<std::uintmax_t>(sizes_[file])) return;
  fail_reading(files_[file], fmt::format("the file shrank: it had {} bytes when the corpus was opened and now has {}. "
                                         "Leave the corpus alone while it is read; put the file back and start again.",
                                         with_thousands(sizes_[file]), with_thousands(static_cast<int64_t>(size))));
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

bool TextFileSource::accept(const SourcePosition& start, const RecordText& read) {
  counters_.invalid_utf8 += read.invalid_utf8;
  if (read.text) {
    ++counters_.documents;
    return true;
  }
  const std::filesystem::path& file = files_[static_cast<size_t>(start.file)];
  const int64_t line = start.line > 0 ? start.line : line_at(file, start.byte);
  const std::string place = fmt::format("{}:{}", file.string(), line);
  std::string what = read.problem;
  if (to_lower(unpacked_name(file).extension().string()) == ".json") {
    what += " (a .json file is read as one record per line)";
  }
  if (bad_record_ == BadRecord::error) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("{}: {}. Mend or remove the line, {}or leave such records out with data.bad_record = \"skip\".",
                    place, what, chat_ ? "" : "name another field with data.text_field, "));
  }
  if (counters_.bad_records == 0) notice(fmt::format("{}: {}; such records are skipped and counted", place, what));
  ++counters_.bad_records;
  return false;
}

std::optional<int64_t> TextFileSource::count_documents() {
  if (documents_) return documents_;
  const bool packed =
      std::any_of(files_.begin(), files_.end(), [](const auto& file) { return packing_of(file) != Packing::none; });
  if (packed) return std::nullopt;
  begins_.resize(files_.size());
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

bool TextFileSource::read(int64_t index, Document& document) {
  TITAN_CHECK(documents_ && index >= 0 && index < *documents_, index);
  const auto file = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin()) - 1;
  const std::vector<int64_t>& begins = begins_[file];
  const auto inside = static_cast<size_t>(index - first_[file]);
  const int64_t begin = begins[inside];
  const int64_t end = inside + 1 < begins.size() ? begins[inside + 1] : sizes_[file];
  reading_file_ = static_cast<int64_t>(file);
  if (!random_ || random_file_ != file) random_ = std::make_unique<FileReader>(files_[file]);
  random_file_ = file;
  RawDocument raw;
  raw.form = text_form(files_[file]);
  raw.start = {index, static_cast<int64_t>(file), begin, /*line=*/0};
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
  return fmt::format("{} ({} files, {})", path_, files_.size(), human_bytes(static_cast<double>(file_bytes())));
}

CorpusFiles TextFileSource::file_sizes() const {
  CorpusFiles all;
  for (size_t i = 0; i < files_.size(); ++i) all.emplace_back(files_[i], sizes_[i]);
  return all;
}

std::string TextFileSource::order() const {
  if (chat_) return "conversations";
  return fmt::format("text (field {}, documents of up to {} bytes)", text_field_, largest_document_);
}

std::string TextFileSource::growth_obstacle(const CorpusGrowth& growth, const SourcePosition& at) const {
  const std::filesystem::path& path = files_[growth.file];
  if (sizes_[growth.file] == growth.bytes) return {};
  if (packing_of(path) != Packing::none) return "where its text ended is not known of a packed file";
  if (text_form(path) == TextForm::whole) {
    const bool was_in_last_document = at.file == static_cast<int64_t>(growth.file) &&
                                      growth.bytes - at.byte <= static_cast<int64_t>(largest_document_);
    return was_in_last_document ? "the document that the checkpoint stopped in is longer now: of a .txt file the end "
                                  "is part of its last document; add text as a new file"
                                : "";
  }
  BufferedFile file(path, std::max<int64_t>(0, growth.bytes - 1));
  const std::string_view around = file.peek(3);  // the last old byte and two new ones
  const std::string_view added = around.substr(std::min<size_t>(around.size(), growth.bytes > 0 ? 1 : 0));
  const bool ended = growth.bytes == 0 || around.starts_with('\n');
  return ended || added.starts_with('\n') || added.starts_with("\r\n") ? "" : "its last line is longer now";
}

int64_t TextFileSource::file_bytes() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}); }

uint64_t TextFileSource::fingerprint() const {
  std::string facts = fmt::format("{}\n{}\n", chat_ ? "conversations" : text_field_, largest_document_);
  for (size_t i = 0; i < files_.size(); ++i) facts += fmt::format("{} {}\n", files_[i].filename().string(), sizes_[i]);
  return name_key(facts);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhatWorks =
    "Give a .txt, .jsonl or .json (one record per line) file, packed as .gz or .zst or not, a .bin file of titan_train "
    "data tokenize, a folder of them, or a glob";

[[noreturn]] void fail(const std::string& path, std::string_view what, std::string_view remedy = kWhatWorks) {
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}. {}.", path, what, remedy));
}

/// Walks a folder and its subfolders, following links.
class FolderWalk {
 public:
  explicit FolderWalk(std::string top) : top_(std::move(top)) {}

  TextFiles run() {
    try {
      walk(top_);
    } catch (const fs::filesystem_error& problem) {
      fail(top_, fmt::format("{}: {}", problem.path1().string(), problem.code().message()));
    }
    if (!found_.files.empty()) return std::move(found_);
    if (found_.left_out == 0) fail(top_, "the folder holds no files");
    fail(top_, fmt::format("the folder holds no supported file, only such as {}", found_.left_out_example));
  }

 private:
  void walk(const fs::path& folder) {
    const fs::path real = fs::canonical(folder);
    for (size_t level = 0; level < above_.size(); ++level) {
      if (above_[level].second != real) continue;
      fail(top_, fmt::format("{} is a link that leads back to {}", folder.string(), above_[level].first.string()),
           "Remove the link, or name the folders below it with a glob");
    }
    above_.emplace_back(folder, real);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry.is_directory()) {
        walk(entry.path());
      } else if (entry.is_regular_file()) {
        add(entry.path(), name);
      } else if (entry.is_symlink() && text_form(entry.path()) != TextForm::none) {
        fail(top_, fmt::format("{} is a link to nothing", entry.path().string()), "Mend the link or remove it");
      }
    }
    above_.pop_back();
  }

  void add(const fs::path& file, const std::string& name) {
    if (name.ends_with(".bin.idx")) return;  // belongs to its .bin file
    if (text_form(file) != TextForm::none) {
      found_.files.push_back(file);
    } else if (found_.left_out++ == 0 || name < found_.left_out_example) {
      found_.left_out_example = name;
    }
  }

  std::string top_;
  std::vector<std::pair<fs::path, fs::path>> above_;  // the folders from the top to here: as named, and resolved
  TextFiles found_;
};

/// Throws the reason why a file with this name is not supported, for a user who named it.
[[noreturn]] void refuse_form(const std::string& path, const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string extension = to_lower(unpacked_name(file).extension().string());
  if (extension == ".parquet") {
    fail(path, fmt::format("Parquet files are not read here ({})", name),
         fmt::format("Convert it with: python scripts/parquet_to_jsonl.py {} {}", file.string(),
                     fs::path(file).replace_extension(".jsonl").string()));
  }
  if (extension == ".bin")
    fail(path, fmt::format("{} is packed, and a .bin file is mapped into memory", name), "Unpack it");
  if (extension.empty()) fail(path, fmt::format("the name {} does not say what kind of text the file holds", name));
  fail(path, fmt::format("{} files are not read here ({})", file.extension().string(), name));
}

std::vector<fs::path> files_matching(const std::string& pattern) {
  glob_t matches{};
  int result = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<fs::path> files;
  for (size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) files.emplace_back(matches.gl_pathv[i]);
  ::globfree(&matches);
  std::erase_if(files, [](const fs::path& file) { return !fs::is_regular_file(file); });
  if (files.empty()) fail(pattern, "no file matches");
  return files;
}

}  // namespace

TextForm text_form(const fs::path& path) {
  const std::string extension = to_lower(unpacked_name(path).extension().string());
  if (extension == ".txt") return TextForm::whole;
  if (extension == ".bin" && packing_of(path) == Packing::none) return TextForm::ids;
  return extension == ".jsonl" || extension == ".json" ? TextForm::records : TextForm::none;
}

TextFiles find_text_files(const std::string& path) {
  std::error_code problem;
  fs::file_status status = fs::status(path, problem);
  TextFiles found;
  if (fs::is_directory(status)) {
    found = FolderWalk(path).run();
  } else if (fs::is_regular_file(status)) {
    found.files = {path};
  } else if (fs::exists(status)) {
    fail(path, "this is neither a file nor a folder, and text is read more than once");
  } else if (path.find_first_of("*?[") != path.npos) {
    found.files = files_matching(path);
  } else {
    const bool loop = problem == std::errc::too_many_symbolic_link_levels;
    fail(path, loop      ? "this is a link that leads back to itself"
               : problem ? problem.message()
                         : "there is no such file");
  }
  std::vector<fs::path>& files = found.files;
  for (const fs::path& file : files) {
    if (text_form(file) == TextForm::none) refuse_form(path, file);
  }
  std::sort(files.begin(), files.end());
  const auto holds_ids = [](const fs::path& file) { return text_form(file) == TextForm::ids; };
  const auto of_ids = std::find_if(files.begin(), files.end(), holds_ids);
  const auto of_text = std::find_if_not(files.begin(), files.end(), holds_ids);
  if (of_ids != files.end() && of_text != files.end()) {
    fail(path, fmt::format("{} holds ids and {} holds text", of_ids->filename().string(), of_text->filename().string()),
         "Keep the two kinds in folders of their own, and mix them with data.mixture if you want both");
  }
  bool all_empty =
      std::all_of(files.begin(), files.end(), [](const fs::path& file) { return fs::file_size(file) == 0; });
  if (all_empty)
    fail(path, files.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", files.size()));
  return found;
}

}  // namespace titan
