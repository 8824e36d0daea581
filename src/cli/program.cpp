#include "titan/cli/program.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "titan/base/console_writer.h"
#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// A terminate handler takes no arguments, so the function that describes a thread's exception is stored here.
std::atomic<DescribeFailure> describe_uncaught{describe_failure_without_tensors};

int fail(const Failure& failure) {
  std::cout.flush();
  standard_error().write("titan_train: " + printable_lines(failure.text) + "\n");
  return static_cast<int>(failure.code);
}

/// Terminate handler for an exception that escapes a thread, mostly out of memory: ends the process as for an exception
/// in the main thread, without destroying static objects, and with a core dump for a bug.
[[noreturn]] void end_uncaught() {
  const std::exception_ptr error = std::current_exception();
  auto code = static_cast<int>(ExitCode::bug);
  try {
    if (error) code = fail(describe_uncaught.load()(error));
  } catch (const std::bad_alloc&) {  // no memory for the message either
    constexpr std::string_view kWords = "titan_train: out of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
    code = static_cast<int>(ExitCode::out_of_memory);
  }
  if (code == static_cast<int>(ExitCode::bug)) std::abort();
  std::_Exit(code);
}

/// Else a closed standard output or error would become the first file that the program opens, and a log would be
/// written into it. What is opened here cannot be written: a command whose result is lost must notice.
void keep_standard_descriptors_open() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0) (void)::open("/dev/null", O_RDONLY);  // open() takes the lowest free number
  }
}

/// Paths that are not absolute have no meaning there, and libraries say so in words of their own.
void expect_working_folder() {
  std::error_code gone;
  if (!std::filesystem::current_path(gone).empty()) return;
  throw Error(ExitCode::storage, fmt::format("the working folder cannot be used ({}): it may have been removed; change "
                                             "to a folder that is there, and start again",
                                             gone.message()));
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
    // An Error with the code of success is a bug here; 0 would tell scripts that the command worked.
    return {known.code() == ExitCode::success ? ExitCode::bug : known.code(), known.what()};
  } catch (const std::filesystem::filesystem_error& file) {
    return {ExitCode::storage, std::string(file.what()) + "; see whether the path is right and can be used"};
  } catch (const std::system_error& refused) {
    if (refused.code() == std::errc::resource_unavailable_try_again) {
      return {ExitCode::out_of_memory,
              fmt::format("the system starts no more threads ({}); raise the limit, or give fewer training.threads",
                          task_limit())};
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
  // If a file reaches its size limit, let the write fail as on a full disk instead of killing the process.
  ::signal(SIGXFSZ, SIG_IGN);
  keep_standard_descriptors_open();
  describe_uncaught = describe;
  std::set_terminate(end_uncaught);
  return exit_code_of(
      [&] {
        const ErrorStream unblocked;
        const PrintableStream errors(std::cerr);
        expect_working_folder();
        // Only a terminal acts on control characters in names and texts; files and pipes get the bytes as they are.
        // schedule and launch write colour codes of their own, which the filter would take out.
        const bool paints = !words.empty() && (words[0] == "schedule" || words[0] == "launch");
        std::optional<PrintableStream> output;
        if (!paints && ::isatty(STDOUT_FILENO) != 0) output.emplace(std::cout);
        const int code = act(Schema());
        // A lost line of launch is a lost line of a log: it must not turn a good run into a failure.
        const bool is_result = words.empty() || words[0] != "launch";
        if (code == 0 && is_result && !std::cout.flush()) {
          throw Error(ExitCode::storage, "standard output could not be written: a full disk, or a file that is closed");
        }
        return code;
      },
      describe);
}

int end_process(int code) {
  if (code == 0 && !has_left_threads()) return code;
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

namespace {

/// Reports an unknown subcommand; CLI11 would call it an unexpected argument.
void refuse_mistyped_subcommand(const CLI::App& app, std::span<const std::string> words) {
  std::vector<std::string> known;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(subcommand->get_name());
  }
  if (known.empty() || words.empty() || words[0].starts_with("-")) return;
  if (std::find(known.begin(), known.end(), words[0]) != known.end()) return;
  const std::vector<std::string> close = nearest(words[0], known, 1);
  const std::string hint = close.empty() ? "" : fmt::format("; did you mean {}?", close.front());
  const std::string name = app.get_name();
  throw Error(ExitCode::bad_config, fmt::format("{} has no command {}{} ({} --help)", name.substr(name.rfind(' ') + 1),
                                                words[0], hint, name));
}

/// Reports a mistyped option of the command, which CLI11 leaves over if options of the schema may follow.
void refuse_mistyped_option(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : app.get_prefix_command() ? std::vector<std::string>() : app.remaining()) {
    const std::string option = word.substr(0, word.find('='));
    if (!option.starts_with("--") || option.find('.') != option.npos) continue;
    const std::vector<std::string> close = nearest(option, known, 1);
    if (close.empty() || edit_distance(option, close[0]) > 2) continue;
    const std::string name = app.get_name();
    throw Error(ExitCode::bad_config, fmt::format("{} has no option {}; did you mean {}? ({} --help)",
                                                  name.substr(name.rfind(' ') + 1), option, close[0], name));
  }
}

/// Refuses an empty word, as an unset variable of a shell gives, where a command expects a path.
void refuse_empty_path(CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& given = option->results();
    if (!option->get_positional() || std::find(given.begin(), given.end(), "") == given.end()) continue;
    const std::string name = app.get_name();
    throw Error(ExitCode::bad_config, fmt::format("{}: {} is empty; give a path: {}", name.substr(name.rfind(' ') + 1),
                                                  option->get_name(), option->get_description()));
  }
  for (CLI::App* subcommand : app.get_subcommands()) refuse_empty_path(*subcommand);
}

}  // namespace

bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out) {
  refuse_mistyped_subcommand(app, words);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 reads a vector from its end
  } catch (const CLI::CallForHelp&) {
    out << app.help();  // the root's: it prints the chosen subcommand with its full name; that one's own lacks the name
    return false;
  } catch (const CLI::ParseError& problem) {
    const std::string name = app.get_name();
    throw Error(ExitCode::bad_config,
                fmt::format("{}: {} ({} --help)", name.substr(name.rfind(' ') + 1), problem.what(), name));
  }
  refuse_mistyped_option(app);
  refuse_empty_path(app);
  return true;
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](const std::string& word) -> std::string {
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
    // A number beyond 64 bits leaves no value: its sign tells on which side it is.
    const bool below = problem == std::errc() ? value < least : word.starts_with('-');
    const bool whole = problem != std::errc::invalid_argument && end == word.data() + word.size();
    return whole && below ? fmt::format("{} is less than {}", word, least) : "";
  };
  return {check, fmt::format("from {}", least), "at_least"};
}

void in_words_of_command(std::span<const Rewording> words, const std::function<void()>& act) {
  try {
    act();
  } catch (const InvariantError&) {
    throw;
  } catch (const Error& error) {
    std::string message = error.what();
    for (const auto& [key, option] : words) {
      for (size_t at = 0; (at = message.find(key, at)) != message.npos; at += option.size()) {
        message.replace(at, key.size(), option);
      }
    }
    throw Error(error.code(), message);
  }
}

}  // namespace titan
