#include "titan/app/program.h"
#include "titan/cli/program.h"

/// Entry point of libtitan.so for `main`; returns the exit code.
extern "C" int titan_run(int argc, char** argv) {
  return titan::end_process(titan::run_program({argv + 1, argv + argc}));
}
