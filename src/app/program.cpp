#include "titan/app/program.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <new>
#include <span>

#include "titan/app/commands.h"
#include "titan/base/error.h"

namespace titan {
namespace {

int fail(ExitCode code, const std::string& message) {
  std::cout.flush();
  std::cerr << "titan_train: " << message << std::endl;
  return static_cast<int>(code);
}

int dispatch(const std::vector<std::string>& words) {
  const Schema schema;
  const std::span<const std::string> arguments(words);
  auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool asks = std::any_of(words.begin(), words.end(), asks_for_help);
  if (!words.empty()) {
    if (words[0] == "--version") {
      std::cout << "titan_train " TITAN_VERSION "\n";
      return 0;
    }
    if (asks && (words[0] == "train" || words[0] == "lr-table")) return run_help(schema, {});
    for (const Command& command : commands()) {
      if (words[0] == command.name) return command.run(schema, arguments.subspan(1));
    }
    if (asks_for_help(words[0])) return run_help(schema, arguments.subspan(1));
  }
  if (asks) return run_help(schema, {});
  return run_train(schema, arguments);
}

bool is_out_of_memory(const std::string& message) {
  return message.find("can't allocate memory") != std::string::npos ||
         message.find("out of memory") != std::string::npos;
}

std::string first_line(const std::string& message) { return message.substr(0, message.find('\n')); }

/// With the allocator's own words on the size, without where in LibTorch they were thrown.
std::string out_of_memory(const std::string& message) {
  const size_t sentence = std::min(message.find("you tried to allocate"), message.find("Tried to allocate"));
  std::string what;
  if (sentence != std::string::npos)
    what = " (" + message.substr(sentence, message.find(". ", sentence) - sentence) + ")";
  return "out of memory" + what +
         "; try a smaller training.local_batch_size or training.seq_len, or activation_checkpoint.mode = \"full\"";
}

}  // namespace

int exit_code_of(const std::function<int()>& act) {
  try {
    return act();
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::out_of_memory, out_of_memory({}));
  } catch (const c10::Error& error) {
    const std::string message = first_line(error.what_without_backtrace());
    if (is_out_of_memory(message)) return fail(ExitCode::out_of_memory, out_of_memory(message));
    return fail(ExitCode::bug, "internal error: " + message);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(ExitCode::storage, std::string(error.what()) + "; see whether the path is right and can be used");
  } catch (const std::exception& error) {
    return fail(ExitCode::bug, std::string("internal error: ") + error.what());
  }
}

int run_program(const std::vector<std::string>& words) {
  return exit_code_of([&words] { return dispatch(words); });
}

}  // namespace titan
