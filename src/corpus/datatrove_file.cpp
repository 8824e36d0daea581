// NAME.ds of datatrove, which nanotron trains on: ids, two bytes each if the vocabulary fits, else four. NAME.ds.index
// holds the ends of the documents (uint64, in ids). NAME.ds.metadata, which may be missing, is text: the tokenizer's
// name, "|" and the bytes of an id (not of former versions), then counts. NAME.ds.loss is a mask of labels.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "foreign_ids.h"
#include "titan/base/text.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

const std::string kDatatroveAgain = "Get both files again, or make them again with datatrove";
constexpr size_t kLongestName = 200;  // of a tokenizer: the line goes into messages

std::filesystem::path beside(const std::filesystem::path& ds, const char* extension) { return ds.string() + extension; }

bool is_there(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::exists(path, unknown);
}

class DatatroveFile : public IndexedIdFile {
 public:
  explicit DatatroveFile(const std::filesystem::path& ds) : IndexedIdFile(ds, beside(ds, ".index")) {
    check_ends();
    ids_.set_layout(find_type(), 0);
    facts_.token_bytes = size_of(ids_.type());
    facts_.tokens = ids_.size();
    read_metadata();
  }

  std::string format() const override { return "datatrove ids"; }
  std::string warning() const override {
    const std::filesystem::path mask = beside(path_, ".loss");
    if (!is_there(mask)) return {};
    return fmt::format("{} holds a mask of labels, which is not read: every id is a label", mask.string());
  }

 private:
  void check_ends();
  IdType find_type() const;
  void read_metadata();
  int64_t begin_of(int64_t index) const override {
    return index == 0 ? 0 : index_number<int64_t>(static_cast<size_t>(index - 1) * sizeof(int64_t));
  }
  std::string index_name() const { return index_path_.filename().string(); }
};

void DatatroveFile::check_ends() {
  if (index_.size() % sizeof(int64_t) != 0) {
    fail(fmt::format("its index {} has {} bytes, and each document takes 8: it is cut off", index_name(),
                     with_thousands(static_cast<int64_t>(index_.size()))),
         kDatatroveAgain);
  }
  facts_.documents = static_cast<int64_t>(index_.size() / sizeof(int64_t));
  for (int64_t i = 0; i < facts_.documents; ++i) {
    if (begin_of(i + 1) >= begin_of(i)) continue;  // also false for an end beyond the largest int64
    fail(fmt::format("its index {} is damaged: document {} ends before it begins", index_name(), i), kDatatroveAgain);
  }
}

/// The type by which the file is as long as the index says. The index is always there; the metadata may be missing.
IdType DatatroveFile::find_type() const {
  const int64_t tokens = begin_of(facts_.documents), bytes = ids_.bytes();
  for (const IdType type : {IdType::uint16, IdType::uint32}) {
    if (bytes % size_of(type) == 0 && bytes / size_of(type) == tokens) return type;
  }
  fail(fmt::format("it has {} bytes, and its index {} ends at id {}: that is neither two nor four bytes for each id",
                   with_thousands(bytes), index_name(), with_thousands(tokens)),
       kDatatroveAgain);
}

void DatatroveFile::read_metadata() {
  if (!is_there(beside(path_, ".metadata"))) return;
  const MappedFile file(beside(path_, ".metadata"));  // refuses a pipe
  std::string line(std::string_view(file.bytes(), std::min(file.size(), kLongestName)));
  line.resize(std::min(line.size(), line.find('\n')));
  repair_utf8(line);
  for (const char* width : {"|2", "|4"}) {
    if (!line.ends_with(width)) continue;
    line.resize(line.size() - 2);
    if (width[1] - '0' == facts_.token_bytes || facts_.tokens == 0) continue;
    fail(fmt::format("{} says that an id takes {} bytes, and the file and its index {} say {}",
                     beside(path_, ".metadata").filename().string(), width[1], index_name(), facts_.token_bytes),
         kDatatroveAgain);
  }
  if (!line.starts_with("Unknown Tokenizer")) facts_.tokenizer = printable(line);
}

}  // namespace

std::unique_ptr<IdFile> open_datatrove_file(const std::filesystem::path& ds) {
  if (!is_there(beside(ds, ".index"))) {
    fail_ids(ds, fmt::format("it has no index beside it ({})", beside(ds, ".index").filename().string()),
             "datatrove writes it with save_index = True, and it says where documents end: copy it too, or make the "
             "file again. Files of the context shuffler have none; give those that it read");
  }
  return std::make_unique<DatatroveFile>(ds);
}

}  // namespace titan
