#include "titan/app/commands.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <set>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/ordered_json.h"
#include "titan/base/text.h"
#include "titan/cli/options.h"
#include "titan/report/page.h"

namespace titan {
namespace {

/// The folder of a run, given as a folder or as a file in it.
std::filesystem::path folder_of(const std::string& word) {
  const std::filesystem::path path = std::filesystem::absolute(word).lexically_normal();
  std::filesystem::path folder = std::filesystem::is_regular_file(path) ? path.parent_path() : path;
  if (folder.filename().empty()) folder = folder.parent_path();  // a trailing slash would make the run's name empty
  if (!std::filesystem::exists(folder / "metrics.jsonl")) {
    throw Error(ExitCode::bad_data, fmt::format("report: {} holds no metrics.jsonl; name the folder that "
                                                "job.dump_folder named",
                                                word));
  }
  return folder;
}

/// run.json; null if the run has none or it is damaged.
nlohmann::ordered_json facts_of(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "run.json")) return {};
  try {
    return parse_ordered_json(read_text_file(folder / "run.json", ExitCode::bad_data));
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

/// Throws Error(bad_config) for a page in the place of what it is made from.
void check_place(const std::filesystem::path& page, const std::vector<std::filesystem::path>& folders) {
  std::error_code ignored;
  for (const auto& folder : folders) {
    for (const char* name : {"metrics.jsonl", "run.json"}) {
      if (!std::filesystem::equivalent(page, folder / name, ignored)) continue;
      throw Error(ExitCode::bad_config,
                  fmt::format("report: --out {} is what the page is made from; name another place", page.string()));
    }
  }
}

/// The shortest unique name of a run: the last part of the path, or all of it.
std::vector<std::string> names_of(const std::vector<std::filesystem::path>& folders) {
  std::set<std::string> short_names;
  for (const auto& folder : folders) short_names.insert(folder.filename().string());
  std::vector<std::string> names;
  for (const auto& folder : folders) {
    names.push_back(short_names.size() == folders.size() ? folder.filename().string() : folder.string());
  }
  return names;
}

/// A full disk or a crash can leave an incomplete line; the other lines are valid.
void report_unread_lines(const RunHistory& history, const std::filesystem::path& metrics, std::ostream& out) {
  const int64_t lines = history.unread_lines();
  if (lines == 0) return;
  out << fmt::format("warning: {}: {} and {} left out\n", metrics.string(),
                     lines == 1 ? "1 line is not a record of a step"
                                : fmt::format("{} lines are not records of a step", with_thousands(lines)),
                     lines == 1 ? "was" : "were");
}

}  // namespace

int run_report(const Schema&, std::span<const std::string> arguments) {
  const std::optional<ReportOptions> options = parse_report(arguments, std::cout);
  if (!options) return 0;
  std::vector<std::filesystem::path> folders;
  for (const std::string& word : options->runs) folders.push_back(folder_of(word));
  const std::vector<std::string> names = names_of(folders);
  std::vector<RunHistory> histories;
  for (const auto& folder : folders) histories.push_back(read_history(folder / "metrics.jsonl"));
  std::vector<ReportedRun> runs;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (histories[i].empty()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("report: {} has no line of a step yet", (folders[i] / "metrics.jsonl").string()));
    }
    runs.push_back({names[i], facts_of(folders[i]), &histories[i], CompletionStatus::unknown, 0, 0});
  }
  const std::filesystem::path page = !options->output.empty() ? std::filesystem::path(options->output)
                                     : folders.size() == 1    ? folders[0] / "report.html"
                                                              : "report.html";
  check_place(page, folders);
  with_remedy("name another place with --out", [&] { write_file_atomically(page, render_page(runs)); });
  std::cout << page.string() << "\n";
  for (size_t i = 0; i < folders.size(); ++i)
    report_unread_lines(histories[i], folders[i] / "metrics.jsonl", std::cout);
  return 0;
}

}  // namespace titan
