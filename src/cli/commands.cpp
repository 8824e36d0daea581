#include "titan/cli/commands.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>

#include "titan/base/error.h"
#include "titan/cli/options.h"
#include "titan/config/config_command.h"
#include "titan/config/help.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

using Words = std::span<const std::string>;

int run_tokenizer(const Schema&, Words arguments) {
  run_tokenizer_command({arguments.begin(), arguments.end()}, std::cin, std::cout);
  return 0;
}

int run_data(const Schema&, Words arguments) {
  run_data_command({arguments.begin(), arguments.end()}, std::cout);
  return 0;
}

/// The terminal's width; with colours unless NO_COLOR is set.
GridOptions terminal() {
  GridOptions options;
  if (::isatty(STDOUT_FILENO) == 0) return options;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  options.colour = std::getenv("NO_COLOR") == nullptr;
  return options;
}

int run_schedule(const Schema&, Words arguments) {
  run_schedule_command({arguments.begin(), arguments.end()}, terminal(), std::cout);
  return 0;
}

int run_config(const Schema& schema, Words arguments) {
  return config_command(schema, arguments, job_checks(), std::cout, std::cerr);
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

const Command* command_named(std::string_view name) {
  const auto found =
      std::find_if(commands().begin(), commands().end(), [&](const Command& command) { return command.name == name; });
  return found == commands().end() ? nullptr : &*found;
}

/// The help of a command that needs tensors: that of its own words.
template <auto parse>
int show_help(const Schema&, Words arguments) {
  parse(arguments, std::cout);
  return 0;
}

int run_completion(const Schema& schema, Words arguments) {
  return completion_command(schema, arguments, completion_words(schema), std::cout, std::cerr);
}

std::vector<std::string> topics_of_help() {
  std::vector<std::string> topics;
  for (const Command& one : commands()) topics.emplace_back(one.name);
  const Schema schema;
  for (const SectionInfo& section : schema.sections()) topics.push_back(section.name);
  return topics;
}

int run_help(const Schema& schema, Words arguments) {
  if (!arguments.empty() && asks_for_help(arguments[0])) arguments = {};
  const Command* command = arguments.empty() ? nullptr : command_named(arguments[0]);
  if (command && command->run) {
    const std::vector<std::string> help{"--help"};
    command->run(schema, help);
    std::cout << '\n';
  }
  if (!arguments.empty() && help_text(schema, arguments[0]).empty()) {
    const std::vector<std::string> close = schema.suggest_section(arguments[0]);
    throw Error(ExitCode::bad_config,
                fmt::format("help: there is no command or section {}{}", arguments[0],
                            close.empty() ? "; titan_train help lists all" : "; did you mean " + close.front() + "?"));
  }
  if (arguments.empty()) {
    std::cout << "titan_train: trains Llama models\n\n";
    for (const Command& command : commands()) {
      std::cout << fmt::format("  titan_train {:<11}{:<36} {}\n", command.name, command.arguments, command.purpose);
    }
    std::cout << "\nExample:\n  titan_train configs/debug_model.toml --training.steps 50\n\nOptions, given as "
                 "--section.key value after the config file, or in it (--quiet: warnings and errors "
                 "alone):\n\n";
  }
  std::cout << help_text(schema, arguments.empty() ? std::string_view() : std::string_view(arguments[0]));
  return 0;
}

}  // namespace

std::span<const Command> commands() {
  static constexpr std::array<Command, 19> all{{
      {"train", "[FILE] [--section.key value]…", "train; the word itself may be left out", true, nullptr, nullptr},
      {"launch", "-n N [FILE] [--section.key value]…", "train with N processes on this machine", true, nullptr,
       show_help<parse_launch>},
      {"restart", "--exit-code N [FILE] …", "whether a job script starts a run again", true, nullptr,
       show_help<parse_restart>},
      {"ranks", "[--hold S] [FILE] …", "test the rendezvous of a run", true, nullptr, show_help<parse_ranks>},
      {"selftest", "[--json] [--section.key value]…", "does every layout on these ranks compute what one process does?",
       true, nullptr, show_help<parse_selftest>},
      {"netcheck", "[--hardware GPU] [--json] [FILE] …",
       "measure communication, and name slow pairs of ranks and hosts", true, nullptr, show_help<parse_netcheck>},
      {"config", "show|explain|diff|docs …", "show and compare configs", true, run_config, nullptr,
       config_command_words},
      {"tokenizer", "train|encode|decode|info …", "make and use tokenizers", false, run_tokenizer, run_tokenizer,
       tokenizer_command_words},
      {"data", "tokenize|info|stats|peek …", "prepare and inspect a corpus", false, run_data, run_data,
       data_command_words},
      {"convert", "from-hf|to-hf|verify|… FROM TO [FILE]", "convert weights from and to other formats", true, nullptr,
       show_help<parse_convert>, convert_command_words},
      {"plan", "[FILE] --world N [--section.key value]…", "print memory and communication of N ranks", true, run_plan,
       run_plan},
      {"generate", "CHECKPOINT --prompt TEXT …", "continue texts with the model in a checkpoint", true, nullptr,
       show_help<parse_generate>},
      {"evaluate", "CHECKPOINT --data FILE …", "loss of texts, or accuracy on multiple-choice questions", true, nullptr,
       show_help<parse_evaluate>},
      {"schedule", "--name S --ranks P --microbatches M", "show a pipeline schedule, its bubble and its memory", false,
       run_schedule, run_schedule},
      {"profile", "summarize TRACE [--top N]", "summarise a trace", false, nullptr, show_help<parse_profile>,
       [] { return std::vector<std::string>{"summarize"}; }},
      {"report", "RUN… [--out FILE]", "make a page of curves out of one run, or of several", false, nullptr,
       show_help<parse_report>},
      {"lr-table", "[FILE] [--section.key value]…", "print the learning rate of every step", true, run_lr_table,
       nullptr},
      {"completion", "bash|zsh", "print a shell completion script", false, run_completion, nullptr,
       [] {
         return std::vector<std::string>{"bash", "zsh"};
       }},
      {"help", "[COMMAND|SECTION]", "this text, or the options of a command or of a section", false, run_help, nullptr,
       topics_of_help},
  }};
  return all;
}

std::vector<std::string> program_words(std::vector<std::string> words) {
  if (words.size() < 2 || words[0] != "help" || !command_named(words[1]) || Schema().is_section(words[1])) return words;
  words.erase(words.begin());
  words.emplace_back("--help");
  return words;
}

std::optional<CommandCall> find_call(Words words, std::span<const NamedCommand> with_tensors) {
  const bool asks = std::any_of(words.begin(), words.end(), asks_for_help);
  const std::string_view word = words.empty() ? std::string_view() : std::string_view(words[0]);
  const Command* const named = command_named(word);
  if (asks && (word == "train" || word == "lr-table" || (!named && word != "--version"))) {
    return CommandCall{run_help, asks_for_help(words[0]) ? words.subspan(1) : Words()};
  }
  if (named && named->run) return CommandCall{named->run, words.subspan(1)};
  const bool has_name = named || word == "--version";
  const auto found = std::find_if(with_tensors.begin(), with_tensors.end(), [&](const NamedCommand& one) {
    return one.name == (has_name ? word : "train");  // a config alone trains, as with torchtitan's script
  });
  if (found == with_tensors.end()) return std::nullopt;
  return CommandCall{found->run, has_name ? words.subspan(1) : words};
}

}  // namespace titan
