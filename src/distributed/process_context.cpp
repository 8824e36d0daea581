// The launch context of the running process: its environment, and which process started this host's ranks.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

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

}  // namespace

LaunchContext process_context() {
  LaunchContext context;
  context.variable = [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  context.launcher_process = find_launcher_process;
  return context;
}

}  // namespace titan
