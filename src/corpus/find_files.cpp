// Finds the files of a corpus: a file, a folder or a glob.
#include <fmt/format.h>
#include <algorithm>

#include "file_patterns.h"
#include "file_source.h"
#include "foreign_ids.h"
#include "hub_folder.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"
#include "titan/corpus/parquet_file.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhatWorks =
    "Give a .txt, .jsonl or .json (one record per line) file, packed as .gz or .zst or not, a .parquet file, a .bin "
    "or .ds file of ids, a folder of them, or a glob";

constexpr std::string_view kNoFile = "is a pipe or a device, and text is read more than once";
constexpr std::string_view kOnlyFiles = "Put its content into a file";

[[noreturn]] void fail(const std::string& path, std::string_view what, std::string_view remedy = kWhatWorks) {
  throw Error(ExitCode::bad_data,
              fmt::format("corpus {}: {}.{}", path, what, remedy.empty() ? "" : fmt::format(" {}.", remedy)));
}

/// True for what is beside a file of ids and describes it: an index, a loss mask, a tokenizer's name. It is not a file
/// that was left out.
bool belongs_to_ids(const fs::path& file) {
  const std::string extension = to_lower(file.extension().string());
  fs::path ids = file;
  const bool describes_ds = extension == ".index" || extension == ".metadata" || extension == ".loss";
  if (extension == ".idx" || describes_ds) ids.replace_extension();  // NAME.bin.idx, NAME.ds.index
  if (extension == ".idx" && to_lower(ids.extension().string()) != ".bin") ids += ".bin";  // Megatron's NAME.idx
  std::error_code unknown;
  return ids != file && text_form(ids) == TextForm::ids && fs::is_regular_file(ids, unknown);
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
    found_.in_own_order = choose_hub_files(top_, found_, others_);
    if (!found_.files.empty()) return std::move(found_);
    if (others_.empty()) fail(top_, "the folder holds no files");
    const fs::path example = *std::min_element(others_.begin(), others_.end(), by_name);
    const std::string what =
        fmt::format("the folder holds no supported file, only such as {}", example.filename().string());
    const FileKind kind = file_kind_at(example);
    if (kind == FileKind::other) fail(top_, what);
    fail(top_, fmt::format("{}: {}", what, describe_kind(kind)), "");
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
    if (is_saved_dataset(folder)) fail(top_, kSavedDataset, "");
    if (is_hub_cache(folder)) {
      fail(top_, fmt::format("{} is a folder of the hub's cache, which holds revisions of a data set", folder.string()),
           "Name that folder itself, or several of them in data.mixture");
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry.is_directory()) {
        walk(entry.path());
      } else if (entry.is_regular_file()) {
        add(entry.path(), name);
      } else if (entry.is_other() && text_form(entry.path()) != TextForm::none) {
        fail(top_, fmt::format("{} {}", entry.path().string(), kNoFile), kOnlyFiles);
      } else if (entry.is_symlink() && text_form(entry.path()) != TextForm::none) {
        fail(top_, fmt::format("{} is a link to nothing", entry.path().string()), "Mend the link or remove it");
      }
    }
    above_.pop_back();
  }

  void add(const fs::path& file, const std::string& name) {
    if (belongs_to_ids(file) || is_megatron_cache(name)) return;
    const bool is_read = text_form(file) != TextForm::none && !describes_dataset(name);
    if (is_read) return found_.files.push_back(file);
    others_.push_back(file);
    if (found_.left_out++ == 0 || name < found_.left_out_example) found_.left_out_example = name;
  }

  static bool by_name(const fs::path& one, const fs::path& other) { return one.filename() < other.filename(); }

  std::string top_;
  std::vector<std::pair<fs::path, fs::path>> above_;  // the folders from the top to here: as named, and resolved
  TextFiles found_;
  std::vector<fs::path> others_;
};

/// Throws the reason why a file with this name is not supported, for a user who named it.
[[noreturn]] void refuse_form(const std::string& path, const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string extension = to_lower(unpacked_name(file).extension().string());
  if (extension == ".bin" || extension == ".ds")
    fail(path, fmt::format("{} is packed, and a {} file is mapped into memory", name, extension), "Unpack it");
  if (belongs_to_ids(file)) fail(path, fmt::format("{} describes a file of ids", name), "Name that file");
  if (extension == ".parquet")
    fail(path, fmt::format("{} is packed, and a Parquet file is not read from its beginning", name), "Unpack it");
  if (extension.empty()) fail(path, fmt::format("the name {} does not say what kind of text the file holds", name));
  fail(path, fmt::format("{} files are not read here ({})", file.extension().string(), name));
}

/// Refuses a file whose bytes are of another kind than its name says. Of ids, open_id_file knows more.
void refuse_other_kind(const fs::path& file) {
  if (text_form(file) == TextForm::ids) return;
  if (text_form(file) == TextForm::parquet) return check_parquet_ends(file);
  const FileKind kind = file_kind_at(file);
  const Packing packing = packing_of(file);
  if (packing == Packing::gzip) return refuse_kind(kind, file, ExitCode::bad_data, {FileKind::gzip});
  if (packing == Packing::zstd) return refuse_kind(kind, file, ExitCode::bad_data, {FileKind::zstd});
  refuse_text_kind(kind, file);
}

/// The folder among `folders` of which no file is read, if there is one. `files`: sorted as text.
const fs::path* unread_folder(const std::vector<fs::path>& folders, const std::vector<fs::path>& files) {
  const auto found = std::find_if(folders.begin(), folders.end(), [&](const fs::path& folder) {
    const std::string inside = (folder / "").string();
    const auto first = std::ranges::lower_bound(files, inside, {}, &fs::path::native);
    return first == files.end() || !first->native().starts_with(inside);
  });
  return found == folders.end() ? nullptr : &*found;
}

TextFiles files_matching(const std::string& pattern) {
  TextFiles found;
  std::vector<fs::path>& files = found.files;
  std::vector<fs::path> folders;
  try {
    for (const fs::path& path : paths_matching(pattern)) {
      std::error_code dangling;
      const fs::file_status status = fs::status(path, dangling);
      if (fs::is_other(status)) fail(pattern, fmt::format("{} {}", path.string(), kNoFile), kOnlyFiles);
      if (!fs::exists(status)) {
        fail(pattern, fmt::format("{} is a link to nothing", path.string()), "Mend the link or remove it");
      }
      const bool is_folder = fs::is_directory(status);
      std::error_code unreadable;  // such a folder counts as one with files
      if (!is_folder || !fs::is_empty(path, unreadable)) (is_folder ? folders : files).push_back(path);
    }
  } catch (const fs::filesystem_error& problem) {
    fail(pattern, fmt::format("{}: {}", problem.path1().string(), problem.code().message()), "");
  }
  const fs::path* unread = unread_folder(folders, files);
  if (files.empty() && unread) {
    fail(pattern, fmt::format("only folders match, such as {}, and a pattern matches files only", unread->string()),
         fmt::format("Name the folder itself, or its files with {}", (*unread / "*").string()));
  }
  if (files.empty()) fail(pattern, "no file matches");
  // As in a folder, an index is left out if its file of ids is there. A glob of indexes alone is refused by its name.
  const auto is_beside = [](const fs::path& file) {
    return belongs_to_ids(file) || is_megatron_cache(file.filename().string());
  };
  if (!std::all_of(files.begin(), files.end(), is_beside)) std::erase_if(files, is_beside);
  if (unread) {
    found.notices.push_back(
        fmt::format("corpus {}: {} is a folder and is not read: a pattern matches files only; {} would name "
                    "those in it",
                    pattern, unread->string(), (*unread / "*").string()));
  }
  return found;
}

/// What files of one source have in common: they are read in the same way.
std::string_view contents_of(const fs::path& file) {
  const TextForm form = text_form(file);
  return form == TextForm::ids ? "holds ids" : form == TextForm::parquet ? "is a Parquet file" : "holds text";
}

void refuse_mixed_forms(const std::string& path, const std::vector<fs::path>& files) {
  const std::string_view first = contents_of(files.front());
  const auto other =
      std::find_if(files.begin(), files.end(), [&](const fs::path& file) { return contents_of(file) != first; });
  if (other == files.end()) return;
  fail(path,
       fmt::format("{} {} and {} {}", files.front().filename().string(), first, other->filename().string(),
                   contents_of(*other)),
       "Name the files of one kind with a glob, or keep the two kinds in folders of their own, and mix them with "
       "data.mixture if you want both");
}

}  // namespace

std::vector<std::string> notices_of(const std::string& path, const TextFiles& files) {
  std::vector<std::string> notices = files.notices;
  if (files.left_out > 0) {
    notices.push_back(fmt::format(
        "corpus {}: {} left out, such as {}", path,
        files.left_out == 1 ? "1 file of another kind is" : fmt::format("{} files of other kinds are", files.left_out),
        files.left_out_example));
  }
  return notices;
}

void refuse_text_kind(FileKind kind, const fs::path& file) {
  if (text_form(file) == TextForm::records) return refuse_kind(kind, file, ExitCode::bad_data);
  refuse_kind(kind, file, ExitCode::bad_data, kKindsOfText);
}

TextForm text_form(const fs::path& path) {
  const std::string extension = to_lower(unpacked_name(path).extension().string());
  if (extension == ".txt") return TextForm::whole;
  if ((extension == ".bin" || extension == ".ds") && packing_of(path) == Packing::none) return TextForm::ids;
  if (extension == ".parquet" && packing_of(path) == Packing::none) return TextForm::parquet;
  const bool is_records = extension == ".jsonl" || extension == ".json" || extension == ".ndjson";
  return is_records ? TextForm::records : TextForm::none;
}

TextFiles find_text_files(const std::string& path) {
  std::error_code problem;
  fs::file_status status = fs::status(path, problem);
  TextFiles found;
  if (const std::optional<fs::path> bin = find_megatron_file(path)) {
    found.files = {*bin};
  } else if (fs::is_directory(status)) {
    const fs::path revision = hub_revision(path);
    found = FolderWalk(revision.string()).run();
    if (revision != path) {
      found.notices.push_back(fmt::format("corpus {}: this is a folder of the hub's cache; its revision {} is read",
                                          path, revision.filename().string()));
    }
  } else if (fs::is_regular_file(status)) {
    found.files = {path};
  } else if (fs::exists(status)) {
    fail(path, "this is neither a file nor a folder, and text is read more than once");
  } else if (path.find_first_of("*?[") != path.npos) {
    found = files_matching(path);
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
  if (!found.in_own_order) std::sort(files.begin(), files.end());
  refuse_mixed_forms(path, files);
  for (const fs::path& file : files) refuse_other_kind(file);
  bool all_empty =
      std::all_of(files.begin(), files.end(), [](const fs::path& file) { return fs::file_size(file) == 0; });
  if (all_empty)
    fail(path, files.size() == 1 ? "the file is empty" : fmt::format("all {} files are empty", files.size()));
  return found;
}

}  // namespace titan
