// titan_train. Commands that need no tensors run directly; all others are in libtitan.so beside the program, since
// loading LibTorch takes most of a command's time.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "titan/base/process.h"
#include "titan/cli/commands.h"
#include "titan/cli/program.h"

namespace {

using LibraryEntry = int (*)(int argc, char** argv);

/// Limits the spinning of OpenMP's threads between parallel loops. By default they spin for milliseconds; on a busy
/// machine, they take the core from the thread that they wait for. 3,000 rounds take some tens of microseconds and cost
/// nothing on an idle machine. libgomp reads the variable when LibTorch loads it.
void limit_spinning() {
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "3000", /*overwrite=*/0);
}

LibraryEntry open_library() {
  const std::filesystem::path library = titan::beside_program("libtitan.so");
  // Global, because libtitan_cuda.so uses its symbols.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const run = handle ? ::dlsym(handle, "titan_run") : nullptr;
  if (!run) {
    throw titan::Error(
        titan::ExitCode::not_started,
        fmt::format("cannot load libtitan.so: {}; build it with scripts/train.sh, keep LibTorch where it "
                    "was then, and allow enough memory (ulimit -v)",
                    ::dlerror()));
  }
  return reinterpret_cast<LibraryEntry>(run);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words = titan::program_words({argv + 1, argv + argc});
  LibraryEntry run = nullptr;
  const auto act = [&](const titan::Schema& schema) {
    if (const auto call = titan::find_call(words)) return call->run(schema, call->arguments);
    limit_spinning();
    run = open_library();
    return 0;
  };
  const int code = titan::run_as_program(words, act, titan::describe_failure_without_tensors);
  return run ? run(argc, argv) : titan::end_process(code);
}
