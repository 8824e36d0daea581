#include "hub_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& folder, const std::string& what) {
  throw Error(ExitCode::bad_data, fmt::format("corpus {}: {}.", folder.string(), what));
}

/// The builder that reads a file in `datasets`, by an extension: json, text, parquet, another one, or none (empty).
/// Facts of datasets 5.2 (packaged_modules).
std::string_view reader_of(std::string_view extension) {
  constexpr std::string_view kOthers =
      " csv tsv arrow conll conllu tar xml hdf5 h5 eval toml md lance txn idx manifest tsfile "
      "vortex fa fasta fna ffn faa frn afa gb gbk genbank fq fastq pdb ent cif mmcif zip 3g2 3gp aiff apng asf au avi "
      "avr blp bmp bufr bw caf cur dcx dds dib emf eps f4v fit fits flac flc fli flv ftc ftu gbr gif glb gltf grib htk "
      "icb icns ico iim im ircam j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx m4v mat4 mat5 mkv mov mp3 mp4 mpc2k mpeg "
      "mpg msp mxf nii nist nut ogg ogm opus paf pbm pcd pcx pdf pgm ply png pnm ppm ps psd pvf pxr ras raw rf64 rgb "
      "rgba sd2 sds sgi stl svx tga tif tiff vda voc vst w64 wav wavex webm webp wma wmf wmv wve xbm xi xpm ";
  if (extension == "json" || extension == "jsonl" || extension == "ndjson") return "json";
  if (extension == "txt") return "text";
  if (extension == "parquet" || extension == "geoparquet" || extension == "gpq") return "parquet";
  const bool is_known = !extension.empty() && kOthers.find(fmt::format(" {} ", extension)) != kOthers.npos;
  return is_known ? "another" : "";
}

constexpr std::array<std::string_view, 4> kReaders{"json", "text", "parquet", "another"};

/// The words behind the dots of a file's name.
std::vector<std::string> extensions_of(const std::string& path) {
  std::vector<std::string> words = split(fs::path(path).filename().string(), '.');
  words.erase(words.begin());
  return words;
}

bool is_read_by(const std::string& path, std::string_view reader) {
  const std::vector<std::string> words = extensions_of(path);
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return reader_of(word) == reader; });
}

/// The reader of a split: that of the commonest extension, where the format's own files with metadata count last.
std::string_view reader_of_split(const std::vector<std::string>& paths) {
  constexpr std::array<std::string_view, 7> kPreferred{"csv", "json", "jsonl", "arrow", "vortex", "lance", "parquet"};
  std::map<std::pair<bool, std::string>, int64_t> counts;
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).filename().string();
    const bool is_metadata = name == "metadata.jsonl" || name == "metadata.csv" || name == "metadata.parquet" ||
                             name == "latest_version_hint.json" || name == "task.toml" || name == "instruction.md";
    for (const std::string& word : extensions_of(path)) ++counts[{!is_metadata, to_lower(word)}];
  }
  using Rank = std::tuple<bool, int64_t, int64_t, std::string>;
  std::optional<Rank> best;
  for (const auto& [entry, count] : counts) {
    if (reader_of(entry.second).empty()) continue;
    const auto preferred = std::find(kPreferred.begin(), kPreferred.end(), entry.second);
    const int64_t preference = preferred == kPreferred.end() ? -1 : preferred - kPreferred.begin();
    best = std::max(best.value_or(Rank()), Rank(entry.first, count, preference, entry.second));
  }
  return best ? reader_of(std::get<3>(*best)) : std::string_view();
}

/// The names of configurations on one line, without `left_out`.
std::string names_of(const std::vector<HubConfiguration>& all, const HubConfiguration* left_out = nullptr) {
  std::vector<std::string> names;
  for (const HubConfiguration& one : all) {
    if (&one != left_out) names.push_back(one.name);
  }
  // Some datasets have a configuration for each of hundreds of languages.
  constexpr size_t kMostNames = 20;
  const size_t count = names.size();
  if (count > kMostNames) {
    names.resize(kMostNames);
    names.push_back(fmt::format("… ({} in all)", count));
  }
  return join(names, ", ");
}

const HubConfiguration& chosen(const fs::path& folder, const std::vector<HubConfiguration>& all) {
  if (all.size() == 1) return all[0];
  const auto is_default = [](const HubConfiguration& one) { return one.is_default || one.name == "default"; };
  const auto found = std::find_if(all.begin(), all.end(), is_default);
  if (found != all.end() && std::none_of(found + 1, all.end(), is_default)) return *found;
  fail(folder,
       fmt::format("README.md names the configurations {}, of which {} the default; name the files of one with a glob",
                   names_of(all), found == all.end() ? "none is" : "several are"));
}

/// How many splits the names of the files tell: by words for several splits, one of them for training, or as shards of
/// any splits; else 0.
size_t splits_in_names(const std::vector<std::string>& sorted) {
  // Matching the patterns is slow, and most folders have thousands of files of which none is named train.
  const auto has_word = [](const std::string& path) {
    return path.find("train") != std::string::npos || path.find("-of-") != std::string::npos;
  };
  if (std::none_of(sorted.begin(), sorted.end(), has_word)) return 0;
  try {
    const HubPatterns patterns = default_hub_patterns("", sorted);
    const auto train =
        std::find_if(patterns.begin(), patterns.end(), [](const auto& one) { return one.first == "train"; });
    const auto are_shards = [](const auto& split) { return split.second.front().find("-of-") != std::string::npos; };
    if (train == patterns.end()) return std::all_of(patterns.begin(), patterns.end(), are_shards) ? patterns.size() : 0;
    // One file named train.txt among others also gives a single pattern. So one pattern is a split only if it names
    // shards (-of-).
    return patterns.size() > 1 || are_shards(*train) ? patterns.size() : 0;
  } catch (const std::invalid_argument&) {
    return 0;
  }
}

/// The files of the split for training as `datasets` finds them, and how they were found.
class HubChoice {
 public:
  /// `is_described`: the folder says that it is a data set of the hub.
  HubChoice(const fs::path& folder, std::vector<std::string> sorted, bool is_described)
      : folder_(folder), sorted_(std::move(sorted)), is_described_(is_described) {}

  std::vector<std::string> read(const std::vector<HubConfiguration>& configurations) {
    const HubConfiguration* named = configurations.empty() ? nullptr : &chosen(folder_, configurations);
    if (named) how_ = fmt::format("the configuration {} of README.md, ", named->name);
    if (configurations.size() > 1) others_ = names_of(configurations, named);
    base_ = named ? named->data_dir : "";
    const HubPatterns patterns = named && named->files ? *named->files : by_names();
    const auto is_train = [](const auto& split) { return split.first == "train"; };
    auto chosen_split = std::find_if(patterns.begin(), patterns.end(), is_train);
    if (chosen_split == patterns.end() && patterns.size() == 1) chosen_split = patterns.begin();
    if (chosen_split == patterns.end()) {
      std::vector<std::string> names;
      for (const auto& [split, unused] : patterns) names.push_back(split);
      fail(folder_, fmt::format("this data set has the splits {} and none for training; name the files of one with a "
                                "glob",
                                join(names, ", ")));
    }
    how_ += fmt::format("the split {}", chosen_split->first);
    std::vector<std::string> found = matching(chosen_split->second);
    const std::string_view reader = reader_of_split(found);
    // Without a configuration, files for other readers are left out; with one, they would be read as if they were not.
    if (!named) std::erase_if(found, [&](const auto& path) { return !is_read_by(path, reader) && !is_zip(path); });
    for (const std::string& path : found) refuse_unread(path, reader);
    return found;
  }

  const std::string& how() const { return how_; }

 private:
  static bool is_zip(const std::string& path) {
    const std::vector<std::string> words = extensions_of(path);
    return std::find(words.begin(), words.end(), "zip") != words.end();
  }

  HubPatterns by_names() const {
    try {
      return default_hub_patterns(base_, sorted_);
    } catch (const std::invalid_argument& problem) {
      fail(folder_, fmt::format("{}; name the files with a glob", problem.what()));
    }
  }

  std::vector<std::string> matching(const std::vector<std::string>& patterns) const {
    std::vector<std::string> all;
    std::set<std::string> seen;
    for (const std::string& pattern : patterns) {
      std::vector<std::string> found = find_hub_files(base_, pattern, sorted_);
      std::erase_if(found, [](const std::string& path) {
        return std::none_of(kReaders.begin(), kReaders.end(), [&](auto reader) { return is_read_by(path, reader); });
      });
      if (found.empty() && pattern.find_first_of("*?[") == pattern.npos) {
        fail(folder_, fmt::format("README.md names {}{}, and datasets reads no such file", base_, pattern));
      }
      for (const std::string& path : found) {
        if (seen.insert(path).second) continue;
        fail(folder_,
             fmt::format("two patterns find {}, which datasets reads twice for it; name the files with a glob", path));
      }
      all.insert(all.end(), found.begin(), found.end());
    }
    if (all.empty()) {
      fail(folder_,
           fmt::format("of this data set of the hub, datasets finds no file for {}{}; {}name the files with a glob",
                       how_, others_.empty() ? "" : fmt::format(" (its other configurations are {})", others_),
                       what_is_here()));
    }
    return all;
  }

  /// For whoever downloaded a part of a data set: the folders that hold its files.
  std::string what_is_here() const {
    std::set<std::string> folders;
    for (const std::string& path : sorted_) {
      const bool is_record = text_form(path) == TextForm::records || text_form(path) == TextForm::parquet;
      const fs::path folder = fs::path(path).parent_path();
      if (is_record && !describes_dataset(fs::path(path).filename().string()) && !folder.empty()) {
        folders.insert(folder.string());
      }
    }
    if (folders.empty()) return {};
    const std::string more = folders.size() == 1 ? "" : fmt::format(" and {} other folders", folders.size() - 1);
    return fmt::format("there are files in {}{}: give such a folder itself as the corpus, or ",
                       (folder_ / *folders.begin()).string(), more);
  }

  void refuse_unread(const std::string& path, std::string_view reader) const {
    std::error_code ignored;
    for (fs::path above = fs::path(path).parent_path(); !above.empty(); above = above.parent_path()) {
      if (!fs::is_symlink(folder_ / above, ignored)) continue;
      fail(folder_,
           fmt::format("{} is a link to a folder, which datasets does not follow; put the folder in its place, "
                       "or name the files with a glob",
                       above.string()));
    }
    const TextForm form = text_form(path);
    if (form == TextForm::records && reader == "json") return;
    if (form == TextForm::parquet && reader == "parquet") return;
    if (form == TextForm::whole && reader == "text" && is_described_) {
      fail(folder_,
           fmt::format("{}: datasets makes each line of a text of the hub a record, and here a text file is one "
                       "document; name the files with a glob if they are meant so",
                       path));
    }
    if (form == TextForm::whole && reader == "text") return;
    const FileKind kind = file_kind_at(folder_ / path);
    const bool is_of_another_reader = form != TextForm::none && kind == FileKind::other;
    fail(folder_, fmt::format("{}: {}", path,
                              kind != FileKind::other ? describe_kind(kind)
                              : is_of_another_reader  ? "it is among files of another kind; name the files with a glob"
                                                      : "files of this kind are not read here; name those that are "
                                                        "meant with a glob"));
  }

  const fs::path& folder_;
  std::vector<std::string> sorted_;
  bool is_described_;
  std::string base_, how_;
  std::string others_;  // the names of the configurations that are not read
};

}  // namespace

bool is_saved_dataset(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::is_regular_file(folder / name, ignored); };
  return has("dataset_dict.json") || (has("state.json") && has("dataset_info.json"));
}

bool describes_dataset(const std::string& name) {
  return name == "dataset_infos.json" || name == "dataset_info.json" || name == "config.json";
}

bool choose_hub_files(const fs::path& folder, TextFiles& found, const std::vector<fs::path>& others) {
  std::error_code ignored;
  const std::optional<std::vector<HubConfiguration>> card = read_hub_card(folder);
  const bool described = std::any_of(others.begin(), others.end(), [](const fs::path& file) {
    return file.filename() == "dataset_infos.json" || file.filename() == "dataset_info.json";
  });
  std::vector<std::string> all;
  for (const std::vector<fs::path>& files : {found.files, others}) {
    for (const fs::path& file : files) all.push_back(file.lexically_relative(folder).string());
  }
  std::sort(all.begin(), all.end());  // as text, the order of fsspec: `datasets` reads the files in it
  const bool has_former = fs::exists(folder / ".huggingface.yaml", ignored);
  const bool is_described = described || card || has_former;
  const size_t splits = is_described ? 0 : splits_in_names(all);
  if (!is_described && splits == 0) return false;
  // `datasets` reads no ids, so no rule of its own says which of them are for training.
  const bool holds_ids =
      !found.files.empty() && std::all_of(found.files.begin(), found.files.end(),
                                          [](const auto& file) { return text_form(file) == TextForm::ids; });
  if (holds_ids && splits > 1) {
    fail(folder,
         "the names of its files tell splits, and all of them would be read; name the files for training with a "
         "glob");
  }
  if (!is_described && holds_ids) return false;
  if (has_former) {
    fail(folder, ".huggingface.yaml describes this data set, and it is not read here; name the files with a glob");
  }
  HubChoice choice(folder, std::move(all), is_described);
  const std::vector<std::string> read = choice.read(card.value_or(std::vector<HubConfiguration>()));
  const size_t before = found.files.size();
  const bool all_are_read = read.size() == before;
  found.files.clear();
  for (const std::string& path : read) found.files.push_back(folder / path);
  if (all_are_read && (!card || card->empty())) return true;
  found.notices.push_back(
      fmt::format("corpus {}: {}; {} is read ({} of {} files)", folder.string(),
                  is_described ? "this is a data set of the hub" : "the names of its files tell splits, as to datasets",
                  choice.how(), read.size(), std::max(before, read.size())));
  return true;
}

}  // namespace titan
