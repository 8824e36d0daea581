#include "ending.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "titan/base/console_writer.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

[[noreturn]] void end_after_notice(ExitCode code) {
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::_exit(static_cast<int>(code));
}

}  // namespace

void end_for_peer() { end_after_notice(ExitCode::peer_failure); }

void end_for_silent_peer() { end_after_notice(ExitCode::hang); }

void end_hanging() { ::_exit(static_cast<int>(ExitCode::hang)); }

void end_stuck(int code, const std::string& text) {
  standard_error().write("titan_train: " + printable_lines(text) + "\n");
  ::_exit(code);
}

Wake::Wake() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Wake::ring() const { ::eventfd_write(event_.get(), 1); }

void Wake::clear() const {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

}  // namespace titan
