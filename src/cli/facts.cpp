#include "titan/cli/facts.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/corpus/document_source.h"
#include "titan/job/data_order.h"

namespace titan {

// The launch context of the running process: its environment, and which process started this host's ranks.

namespace {

struct ProcessStatus {
  std::string name;
  int64_t parent = 0;
};

ProcessStatus status_of(int64_t process) {
  ProcessStatus status;
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Name:")) status.name = trim(line.substr(5));
    if (line.starts_with("PPid:")) status.parent = std::atoll(line.c_str() + 5);
  }
  return status;
}

/// The nearest ancestor that is a proxy of mpiexec, even if a shell is in between; if there is none, the parent.
int64_t find_launcher_process() {
  for (int64_t process = ::getppid(); process > 1;) {
    const ProcessStatus status = status_of(process);
    if (status.name.find("pmi_proxy") != std::string::npos) return process;
    process = status.parent;
  }
  return ::getppid();
}

std::string secret_in_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    throw Error(ExitCode::launcher, fmt::format("TITAN_SECRET_FILE = {} can be read by others; chmod 600 it", path));
  }
  const std::string secret = trim(read_file(path, ExitCode::launcher));
  if (secret.empty()) {
    throw Error(ExitCode::launcher,
                fmt::format("TITAN_SECRET_FILE = {} is empty; put a line of random characters there", path));
  }
  return secret;
}

}  // namespace

LaunchContext process_context() {
  LaunchContext context;
  context.variable = [](std::string_view name) -> std::optional<std::string> {
    if (const char* value = std::getenv(std::string(name).c_str())) return value;
    const char* file = std::getenv("TITAN_SECRET_FILE");
    return name == "TITAN_SECRET" && file ? std::optional(secret_in_file(file)) : std::nullopt;
  };
  context.launcher_process = find_launcher_process;
  return context;
}

// Input files named in a config.

namespace {

namespace fs = std::filesystem;

/// A config file's folder and the parents to search: one of them may be the root of the checkout or installation.
constexpr int kLevels = 4;

bool matches_a_file(const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return false;
  glob_t matches{};
  const bool found = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches) == 0;
  ::globfree(&matches);
  return found;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) || matches_a_file(path.string()) || find_megatron_file(path.string());
}

/// The folders in which an option's relative path is searched, in order.
std::vector<fs::path> folders_for(const LoadedConfig& loaded, const std::string& key) {
  std::error_code ignored;
  std::vector<fs::path> folders{fs::current_path(ignored)};
  if (loaded.origins.place(key).kind != Place::Kind::file) return folders;
  fs::path folder = fs::absolute(loaded.config.job.config_file, ignored).lexically_normal().parent_path();
  for (int level = 0; level < kLevels; ++level, folder = folder.parent_path()) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

/// `input.path` itself if it exists, else the first match in the folders.
InputPlace find_input(const LoadedConfig& loaded, InputPath input) {
  InputPlace place{std::move(input), {}, {}};
  const std::string& path = place.input.path;
  if (is_there(path)) place.found = path;
  if (place.found || fs::path(path).is_absolute()) return place;
  for (const fs::path& folder : folders_for(loaded, place.input.key)) {
    place.searched.push_back(folder.string());
    const fs::path candidate = (folder / path).lexically_normal();
    if (!is_there(candidate)) continue;
    place.found = candidate.string();
    return place;
  }
  return place;
}

}  // namespace

std::vector<InputPlace> find_inputs(const LoadedConfig& loaded) {
  std::vector<InputPlace> places;
  for (InputPath& input : input_paths(loaded.config)) places.push_back(find_input(loaded, std::move(input)));
  return places;
}

MachineFacts machine_facts(const LoadedConfig& loaded) {
  MachineFacts facts{std::thread::hardware_concurrency(), find_inputs(loaded)};
  const auto found = [&](std::string_view key) {
    const auto place = std::find_if(facts.inputs.begin(), facts.inputs.end(),
                                    [&](const InputPlace& one) { return one.input.key == key; });
    return place == facts.inputs.end() ? std::nullopt : place->found;
  };
  const std::optional<std::string> training = found("training.dataset_path"), other = found("validation.dataset_path");
  // Finding the files of a folder may take long, and only this order asks.
  facts.validates_on_training_corpus =
      reads_in_megatron_order(loaded.config) && training && other && name_one_corpus(*training, *other);
  return facts;
}

}  // namespace titan
