#include "parquet_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/philox.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Calls `act`, which only reads an open ParquetFile, and puts the file's name before what that throws.
template <class Act>
auto with_name(const std::filesystem::path& file, const Act& act) {
  try {
    return act();
  } catch (const std::runtime_error& problem) {
    fail_reading(file, problem.what());
  }
}

/// The names of `columns` on one line.
std::string list_columns(const std::vector<ParquetColumn>& columns, bool only_text) {
  // Datasets of text have fewer columns. Tables of features have hundreds, too many for an error message.
  constexpr size_t kMost = 12;
  std::vector<std::string> names;
  for (const ParquetColumn& column : columns) {
    if (column.is_text || (!only_text && !column.is_inner)) names.push_back(column.name);
  }
  const size_t all = names.size();
  if (all > kMost) {
    names.resize(kMost);
    names.push_back(fmt::format("… ({} in all)", all));
  }
  return names.empty() ? "none" : join(names, ", ");
}

/// Files that stay open for random access. Opening one reads its footer, which describes each column of each row group:
/// with one open for every row group, a file of n small groups would cost n². The footers of many files are not kept.
constexpr size_t kOpenFiles = 4;

bool is_conversation(const std::vector<ParquetColumn>& columns) {
  return std::any_of(columns.begin(), columns.end(), [](const ParquetColumn& column) {
    return column.name == "messages" || column.name == "conversations" || column.name == "completion" ||
           column.name == "instruction";
  });
}

}  // namespace

bool ParquetSource::next_raw(RawDocument& raw) {
  ParquetRow row;
  while (position_.file < std::ssize(files_)) {
    const auto file = static_cast<size_t>(position_.file);
    reading_file_ = position_.file;
    if (!current_) open_current();
    const bool found = with_name(files_[file], [&] {
      const int64_t groups = std::ssize(current_->rows());
      if (position_.byte >= groups) return false;
      if (current_->next(row)) return true;
      position_ = {position_.document, position_.file, position_.byte + 1, 1};
      if (position_.byte < groups) current_->seek(position_.byte, 0);
      return false;
    });
    if (found) {
      raw.start = position_;
      fill(raw, std::move(row));
      ++position_.document;
      ++position_.line;
      return true;
    }
    if (position_.byte < std::ssize(current_->rows())) continue;
    current_.reset();
    position_ = {position_.document, position_.file + 1, 0, 1};
  }
  return false;
}

void ParquetSource::open_current() {
  const auto file = static_cast<size_t>(position_.file);
  current_ = open(file);
  const std::vector<int64_t>& rows = current_->rows();
  const int64_t group = position_.byte, row = position_.line - 1;
  const bool is_end = group == std::ssize(rows) && row == 0;  // of a file without row groups
  if (!is_end && (group >= std::ssize(rows) || row < 0 || row > rows[static_cast<size_t>(group)])) {
    throw Error(ExitCode::bad_data,
                fmt::format("corpus {}: the saved position ({}) is not in it", options_.path, place_of(position_)));
  }
  if (!is_end) with_name(files_[file], [&] { current_->seek(group, row); });
}

void ParquetSource::refuse_changed(size_t file) const {
  fail_reading(
      files_[file],
      "it was replaced: it is another file than when the corpus was opened. Leave the corpus alone while it is "
      "read; put the file back and start again.");
}

std::unique_ptr<ParquetFile> ParquetSource::open(size_t file) const {
  check_size(file);
  std::error_code gone;  // if it fails, so does opening the file, which says why
  const std::uintmax_t size = std::filesystem::file_size(files_[file], gone);
  if (!gone && size != static_cast<std::uintmax_t>(sizes_[file])) refuse_changed(file);
  std::unique_ptr<ParquetFile> opened = open_parquet_file(files_[file]);
  check_columns(files_[file], opened->columns());
  ParquetRequest request;
  if (reads_text()) request.text = options_.text_field;
  if (options_.holds_ids) request.columns = {options_.text_field};
  request.left_out = options_.ignore_fields;
  with_name(files_[file], [&] { opened->select(request); });
  return opened;
}

void ParquetSource::check_columns(const std::filesystem::path& file, const std::vector<ParquetColumn>& all) const {
  if (options_.chat) return;  // which of the forms a conversation has, is said by each record
  const std::string& wanted = options_.text_field;
  const auto is_it = [&](const ParquetColumn& column) { return column.name == wanted; };
  std::vector<ParquetColumn> columns = all;
  if (options_.holds_ids) std::erase_if(columns, [](const ParquetColumn& column) { return column.is_inner; });
  const char* const remedy = options_.holds_ids ? "Name one with --ids" : "Name one with data.text_field";
  const auto found = std::find_if(columns.begin(), columns.end(), is_it);
  if (found == columns.end()) {
    std::vector<std::string> names;
    for (const ParquetColumn& column : columns) names.push_back(column.name);
    const std::vector<std::string> close = nearest(wanted, names, 3);
    const char* hint = std::any_of(all.begin(), all.end(), is_it) ? ", only a field of a column, where ids are not read"
                       : !options_.holds_ids && is_conversation(columns)
                           ? " and holds conversations (training.dataset = \"chat\")"
                           : "";
    fail_reading(file, fmt::format("it has no column \"{}\"{}; its columns are {}.{} {}.", wanted, hint,
                                   list_columns(columns, /*only_text=*/false),
                                   close.empty() ? "" : fmt::format(" Did you mean {}?", join(close, " or ")), remedy));
  }
  if (found->is_text || found->is_null || options_.holds_ids) return;
  fail_reading(file, fmt::format("its column \"{}\" is not text but of type {}; columns of text: {}. {}.", wanted,
                                 found->type, list_columns(columns, /*only_text=*/true), remedy));
}

void ParquetSource::fill(RawDocument& raw, ParquetRow&& row) const {
  raw.form = row.is_record ? TextForm::records : TextForm::parquet;
  raw.too_long = false;
  raw.problem = std::move(row.problem);
  raw.bytes = std::move(row.bytes);
  if (raw.bytes.size() <= kLongestLine) return;
  raw.problem = fmt::format("this row is longer than {}", human_bytes(kLongestLine));
  raw.bytes.clear();
}

std::string ParquetSource::place_of(const SourcePosition& start) const {
  return fmt::format("{}, row group {}, row {}", files_[static_cast<size_t>(start.file)].string(), start.byte,
                     start.line - 1);
}

std::string ParquetSource::remedy_for_record() const {
  return options_.chat ? "Mend or remove the row" : "Mend or remove the row, name another column with data.text_field";
}

std::string ParquetSource::format() const {
  const std::unique_ptr<ParquetFile> first = open_parquet_file(files_.front());
  const std::string groups = fmt::format("{} row group{}", first->rows().size(), first->rows().size() == 1 ? "" : "s");
  std::vector<std::string> columns;
  for (const ParquetColumn& column : first->columns()) {
    if (!column.is_inner) columns.push_back(fmt::format("{} ({})", column.name, column.type));
  }
  return fmt::format("Parquet, {}{}: {}", groups, files_.size() > 1 ? " in the first file" : "", join(columns, ", "));
}

std::string ParquetSource::order() const {
  return options_.chat ? "conversations of Parquet rows" : fmt::format("Parquet rows (column {})", options_.text_field);
}

uint64_t ParquetSource::fingerprint() const { return name_key(facts(order() + "\n")); }

std::optional<int64_t> ParquetSource::count_documents() {
  if (documents_) return documents_;
  int64_t documents = 0;
  for (size_t file = 0; file < files_.size(); ++file) {
    reading_file_ = static_cast<int64_t>(file);
    const std::vector<int64_t> rows = open(file)->rows();
    for (size_t group = 0; group < rows.size(); ++group) {
      if (rows[group] > 0) groups_.push_back({file, static_cast<int64_t>(group), documents, rows[group]});
      documents += rows[group];
    }
  }
  return documents_ = documents;
}

std::vector<int64_t> ParquetSource::blocks() {
  count_documents();
  std::vector<int64_t> sizes;
  for (const Group& group : groups_) sizes.push_back(group.rows);
  return sizes;
}

ParquetFile& ParquetSource::opened_again(size_t file) {
  const auto is_it = [&](const OpenFile& one) { return one.file == file; };
  const auto found = std::find_if(open_files_.begin(), open_files_.end(), is_it);
  if (found != open_files_.end()) {
    std::rotate(found, found + 1, open_files_.end());
  } else {
    if (open_files_.size() == kOpenFiles) open_files_.erase(open_files_.begin());
    open_files_.push_back({file, open(file)});
  }
  return *open_files_.back().opened;
}

ParquetSource::Rows& ParquetSource::rows_of(const Group& group) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Rows& rows) { return rows.of == &group; });
  if (kept != kept_.end()) return *kept;
  std::swap(kept_[0], kept_[1]);  // the one that was read earlier goes
  kept_[0] = {};
  reading_file_ = static_cast<int64_t>(group.file);
  ParquetFile& opened = opened_again(group.file);
  std::vector<ParquetRow> rows;
  if (group.group >= std::ssize(opened.rows())) refuse_changed(group.file);
  with_name(files_[group.file], [&] {
    opened.seek(group.group, 0);
    for (ParquetRow row; opened.next(row);) rows.push_back(std::move(row));
  });
  if (std::ssize(rows) != group.rows) refuse_changed(group.file);
  return kept_[0] = {&group, std::move(rows)};
}

bool ParquetSource::read(int64_t index, Document& document) {
  TITAN_CHECK(documents_ && index >= 0 && index < *documents_, index);
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), index,
                                      [](int64_t wanted, const Group& group) { return wanted < group.first; });
  const Group& group = *std::prev(after);
  const int64_t row = index - group.first;
  RawDocument raw;
  raw.start = {index, static_cast<int64_t>(group.file), group.group, row + 1};
  ParquetRow copy = rows_of(group).rows[static_cast<size_t>(row)];
  fill(raw, std::move(copy));
  return take(std::move(raw), document);
}

}  // namespace titan
