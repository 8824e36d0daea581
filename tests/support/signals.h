// Signals that a process sends to itself in tests.
#pragma once

#include <thread>

#include "titan/base/stop_signals.h"

namespace titan {

/// Returns when StopSignals has taken one.
inline void await_stop_signal() {
  while (StopSignals::received() == 0) std::this_thread::yield();
}

}  // namespace titan
