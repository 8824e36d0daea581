#include "titan/app/report_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <ostream>
#include <set>

#include "parse_words.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/report/page.h"

namespace titan {
namespace {

constexpr size_t kMostRuns = 8;  // colours that can be told apart

/// The folder of a run, named by itself or by a file in it.
std::filesystem::path folder_of(const std::string& word) {
  const std::filesystem::path path = std::filesystem::absolute(word).lexically_normal();
  std::filesystem::path folder = std::filesystem::is_regular_file(path) ? path.parent_path() : path;
  if (folder.filename().empty()) folder = folder.parent_path();  // a slash at the end
  if (!std::filesystem::exists(folder / "metrics.jsonl")) {
    throw Error(ExitCode::bad_data, fmt::format("report: {} holds no metrics.jsonl; name the folder that "
                                                "job.dump_folder named",
                                                word));
  }
  return folder;
}

/// run.json; null where the run has none or it is damaged.
nlohmann::ordered_json facts_of(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "run.json")) return {};
  return nlohmann::ordered_json::parse(read_file(folder / "run.json", ExitCode::bad_data), nullptr,
                                       /*allow_exceptions=*/false);
}

/// As short as tells the runs apart: the last part of the path, or all of it.
std::vector<std::string> names_of(const std::vector<std::filesystem::path>& folders) {
  std::set<std::string> short_names;
  for (const auto& folder : folders) short_names.insert(folder.filename().string());
  std::vector<std::string> names;
  for (const auto& folder : folders) {
    names.push_back(short_names.size() == folders.size() ? folder.filename().string() : folder.string());
  }
  return names;
}

}  // namespace

void run_report_command(const std::vector<std::string>& arguments, std::ostream& out) {
  std::vector<std::string> words;
  std::string output;
  CLI::App app("Make a page of the curves, the numbers and the configs of one run, or of several side by side",
               "titan_train report");
  app.add_option("RUN", words, "Folders of runs (their job.dump_folder)")->required()->expected(1, kMostRuns);
  app.add_option("--out", output, "The page; by default RUN/report.html, of several runs ./report.html");
  if (!parse_words(app, arguments, out)) return;
  std::vector<std::filesystem::path> folders;
  for (const std::string& word : words) folders.push_back(folder_of(word));
  const std::vector<std::string> names = names_of(folders);
  std::vector<RunHistory> histories;
  for (const auto& folder : folders) histories.push_back(read_history(folder / "metrics.jsonl"));
  std::vector<RunView> runs;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (histories[i].empty()) {
      throw Error(ExitCode::bad_data,
                  fmt::format("report: {} has no line of a step yet", (folders[i] / "metrics.jsonl").string()));
    }
    runs.push_back({names[i], facts_of(folders[i]), &histories[i], RunStanding::unknown, 0, 0});
  }
  const std::filesystem::path page = !output.empty()       ? std::filesystem::path(output)
                                     : folders.size() == 1 ? folders[0] / "report.html"
                                                           : "report.html";
  with_remedy("name another place with --out", [&] { write_file_atomically(page, render_page(runs)); });
  out << page.string() << "\n";
}

}  // namespace titan
