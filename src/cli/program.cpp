#include "titan/cli/program.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include "titan/base/printable.h"

namespace titan {
namespace {

/// std::set_terminate takes no argument, so what describes a thread's exception is kept here.
std::atomic<DescribeFailure> describe_uncaught{describe_failure_without_tensors};

int fail(const Failure& failure) {
  std::cout.flush();
  std::cerr << "titan_train: " << printable_lines(failure.text) << std::endl;
  return static_cast<int>(failure.code);
}

/// For an exception that leaves a thread, mostly for lack of memory: ends as one of the main thread does, without a
/// tear-down, and with a core dump where it is a bug.
[[noreturn]] void end_uncaught() {
  const std::exception_ptr error = std::current_exception();
  auto code = static_cast<int>(ExitCode::bug);
  try {
    if (error) code = fail(describe_uncaught.load()(error));
  } catch (const std::bad_alloc&) {  // not even memory for the words
    constexpr std::string_view kWords = "titan_train: out of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
    code = static_cast<int>(ExitCode::out_of_memory);
  }
  if (code == static_cast<int>(ExitCode::bug)) std::abort();
  std::_Exit(code);
}

}  // namespace

Failure out_of_memory_failure(const std::string& words) {
  return {
      ExitCode::out_of_memory,
      "out of memory" + (words.empty() ? "" : " (" + words + ")") +
          "; try a smaller training.local_batch_size or training.seq_len, or activation_checkpoint.mode = \"full\""};
}

Failure describe_failure_without_tensors(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return out_of_memory_failure("");
  } catch (const Error& known) {
    // Nothing that fails ends with 0, whoever gave the code.
    return {known.code() == ExitCode::success ? ExitCode::bug : known.code(), known.what()};
  } catch (const std::filesystem::filesystem_error& file) {
    return {ExitCode::storage, std::string(file.what()) + "; see whether the path is right and can be used"};
  } catch (const std::system_error& refused) {
    if (refused.code() == std::errc::resource_unavailable_try_again) {
      return out_of_memory_failure("the system starts no more threads");
    }
    return {ExitCode::bug, std::string("internal error: ") + refused.what()};
  } catch (const std::exception& other) {
    return {ExitCode::bug, std::string("internal error: ") + other.what()};
  } catch (...) {
    return {ExitCode::bug, "internal error: an exception of an unknown kind"};
  }
}

int exit_code_of(const std::function<int()>& act, DescribeFailure describe) {
  try {
    return act();
  } catch (...) {
    return fail(describe(std::current_exception()));
  }
}

int run_as_program(std::span<const std::string> words, const std::function<int(const Schema& schema)>& act,
                   DescribeFailure describe) {
  // A file that reaches its size limit is a failed write like that of a full disk, not a reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
  describe_uncaught = describe;
  std::set_terminate(end_uncaught);
  return exit_code_of(
      [&] {
        const PrintableStream errors(std::cerr);
        // A file or a pipe gets what a command writes as it is. What schedule and launch put on a terminal has colours.
        const bool paints = !words.empty() && (words[0] == "schedule" || words[0] == "launch");
        std::optional<PrintableStream> output;
        if (!paints && ::isatty(STDOUT_FILENO) != 0) output.emplace(std::cout);
        return act(Schema());
      },
      describe);
}

int end_process(int code) {
  if (code == 0) return code;
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace titan
