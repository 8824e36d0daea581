// The launch context of the running process: its environment, and which process started this host's ranks.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/distributed/launch_environment.h"

namespace titan {
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

/// The nearest ancestor that is a proxy of mpiexec; a shell between it and the rank does not matter. Without one, the
/// parent.
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

std::string random_secret() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

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

}  // namespace titan
