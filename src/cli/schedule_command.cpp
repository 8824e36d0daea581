#include "titan/cli/commands.h"
#include "titan/cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/schedule/action.h"
#include "titan/schedule/families.h"
#include "titan/schedule/simulator.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

/// Above any practical schedule; showing a longer one takes minutes.
constexpr int64_t kMostActions = 200'000;

struct ScheduleOptions {
  std::string name;
  PipelineShape shape;
  std::string from;
  std::string times = "1,1,1,0";
  std::string svg;
  std::string csv;
  bool lowered = false;
};

/// The schedule to show: a named one, with its closed form, or a table from a file.
struct Subject {
  std::string title;
  ScheduleTable table;  // as generated or read
  std::optional<ClosedForm> closed_form;
};

[[noreturn]] void refuse(const std::vector<std::string>& problems) {
  throw Error(ExitCode::bad_config, "schedule: " + join(problems, "\n"));
}

std::string counted(int number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : what == "microbatch" ? "es" : "s");
}

std::string usage() { return " (titan_train schedule --help)"; }

std::string family_names() {
  std::vector<std::string> names;
  for (const ScheduleFamily& family : schedule_families()) names.emplace_back(family.name);
  return join(names, ", ");
}

void declare(CLI::App& app, ScheduleOptions& options) {
  auto* name = app.add_option("--name", options.name, "Schedule: " + family_names());
  auto* from = app.add_option("--from", options.from, "CSV file with a schedule of your own, instead of a name");
  name->excludes(from);
  auto number = [&](const char* word, int& value, const char* help) {
    app.add_option(word, value, help)->excludes(from);
  };
  number("--ranks", options.shape.ranks, "Ranks of the pipeline");
  number("--microbatches", options.shape.microbatches, "Microbatches of a step");
  number("--stages-per-rank", options.shape.stages_per_rank,
         "Stages of each rank; default: the fewest the schedule runs");
  app.add_option("--times", options.times,
                 "Times of F, I and W of a stage, and of a message between ranks; default 1,1,1,0")
      ->type_name("F,I,W[,C]");
  app.add_option("--svg", options.svg, "Draw it into this file");
  app.add_option("--csv", options.csv, "Write the table into this file, as PyTorch reads it");
  app.add_flag("--lowered", options.lowered, "Write the CSV with sends, receives, gathers and reductions");
}

std::string unknown_schedule(const std::string& name) {
  if (to_lower(name).starts_with("pipelineschedule")) {
    return fmt::format("{} is a schedule of a file; name the file with --from", name);
  }
  std::vector<std::string> names;
  for (const ScheduleFamily& family : schedule_families()) names.emplace_back(family.name);
  const std::vector<std::string> close = nearest(name, names, 1);
  return fmt::format("there is no schedule \"{}\"; {}", name,
                     close.empty() ? "there are " + family_names() : "did you mean " + close.front() + "?");
}

/// Parses `given`; adds errors to `problems`.
ActionTimes times_of(const std::string& given, std::vector<std::string>& problems) {
  // Times of kMostActions such actions add up without rounding in a double, which a typo of 1e300 would not.
  constexpr double kMost = 1e6;
  std::vector<double> numbers;
  for (const std::string& word : split(given, ',')) {
    const std::string text = trim(word);
    double number = -1;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_message = numbers.size() == 3;
    const bool fits = number <= kMost && (number > 0 || (is_message && number == 0));
    if (error != std::errc() || stop != text.data() + text.size() || !fits) {
      problems.push_back(
          fmt::format("--times: \"{}\" is not a time of an action; use numbers above 0 and up to 1e6", text));
    }
    numbers.push_back(number);
  }
  if (numbers.size() < 3 || numbers.size() > 4) {
    problems.push_back(fmt::format("--times: {} is not F,I,W or F,I,W,C, such as 1,1,1 or 1,1.1,0.9,0.05", given));
    return {};
  }
  ActionTimes times;
  times.stage = {numbers[0], numbers[1], numbers[2]};
  times.transfer = numbers.size() > 3 ? numbers[3] : 0;
  return times;
}

/// `problems`: earlier errors; all are reported at once.
Subject named(const ScheduleOptions& options, const CLI::App& app, const ActionTimes& times,
              std::vector<std::string> problems) {
  bool complete = true;
  for (const char* word : {"--name", "--ranks", "--microbatches"}) {
    if (app.count(word) > 0) continue;
    problems.push_back(fmt::format("{} is missing{}", word, usage()));
    complete = false;
  }
  const ScheduleFamily* known = find_schedule(options.name);
  if (!known && app.count("--name") > 0) problems.push_back(unknown_schedule(options.name));
  PipelineShape shape = options.shape;
  if (known && app.count("--stages-per-rank") == 0) shape.stages_per_rank = known->least_stages_per_rank;
  if (known && complete) {
    for (std::string& problem : shape_problems(*known, shape)) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) refuse(problems);
  const ScheduleFamily& family = *known;
  if (int64_t{2} * shape.ranks * shape.stages_per_rank * shape.microbatches > kMostActions) {
    refuse({fmt::format("a schedule of more than {} forwards and backwards is too long to show",
                        with_thousands(kMostActions))});
  }
  return {fmt::format("{}: {}, {} each, {}", family.name, counted(shape.ranks, "rank"),
                      counted(shape.stages_per_rank, "stage"), counted(shape.microbatches, "microbatch")),
          generate(family, shape), closed_form(family, shape, times.stage)};
}

Subject from_file(const std::string& file, std::vector<std::string> problems) {
  CsvTable read = parse_csv(read_text_file(file, ExitCode::bad_config), file);
  if (read.problems.empty()) {
    for (const std::string& problem : table_problems(read.table)) read.problems.push_back(file + ": " + problem);
  }
  problems.insert(problems.end(), read.problems.begin(), read.problems.end());
  if (!problems.empty()) refuse(problems);
  const TableFacts facts = facts_of(read.table);
  return {fmt::format("{}: {}, {}, {}", file, counted(facts.ranks, "rank"), counted(facts.stages, "stage"),
                      counted(facts.microbatches, "microbatch")),
          std::move(read.table),
          {}};
}

/// The table to simulate and show: adds transfers to a table that has only compute actions; leaves others unchanged.
ScheduleTable as_run(const ScheduleTable& table, const ActionTimes& times) {
  const TableFacts facts = facts_of(table);
  if (facts.has_transfers || facts.has_weights || facts.has_reductions) return table;
  LoweringOptions options;
  options.sharded = false;
  options.times = times;
  return lower(table, options);
}

std::vector<std::string> headline(const Subject& subject, const ScheduleRun& run) {
  const StageTimes& stage = run.times.stage;
  const std::string form =
      subject.closed_form
          ? fmt::format("{:.2f} % by the closed form{}, {} = {:.6g} idle on each rank",
                        100 * subject.closed_form->bubble, run.times.transfer > 0 ? " (messages free)" : "",
                        subject.closed_form->formula, subject.closed_form->idle)
          : "no closed form for this table and these times";
  return {subject.title,
          fmt::format("times: F {:g}, I {:g}, W {:g}, B {:g}, message {:g}", stage.forward, stage.input_gradient,
                      stage.weight_gradient, stage.of(ActionKind::backward), run.times.transfer),
          fmt::format("time {:.6g}: bubble {:.2f} % simulated; {}", run.simulation.time, 100 * run.simulation.bubble(),
                      form)};
}

void show(const ScheduleOptions& options, const CLI::App& app, const GridOptions& terminal, std::ostream& out) {
  std::vector<std::string> problems;
  const ActionTimes times = times_of(options.times, problems);
  if (options.lowered && options.csv.empty()) problems.emplace_back("--lowered is about the file that --csv names");
  if (!options.csv.empty() && options.csv == options.svg) problems.emplace_back("--csv and --svg name the same file");
  const Subject subject = app.count("--from") == 0 ? named(options, app, times, std::move(problems))
                                                   : from_file(options.from, std::move(problems));
  const ScheduleRun run = run_of(as_run(subject.table, times), times);
  const std::vector<std::string> lines = headline(subject, run);
  out << join(lines, "\n") << "\n\n" << schedule_grid(run, terminal) << "\n" << schedule_loads(run);
  if (!options.svg.empty()) {
    write_file_atomically(options.svg, schedule_svg(run, lines));
    out << "wrote " << options.svg << "\n";
  }
  if (options.csv.empty()) return;
  if (options.lowered && facts_of(subject.table).has_transfers) refuse({"--lowered: this table already is"});
  write_file_atomically(options.csv, to_csv(options.lowered ? split_batches(lower(subject.table)) : subject.table));
  out << "wrote " << options.csv << "\n";
}

}  // namespace

void run_schedule_command(const std::vector<std::string>& arguments, const GridOptions& terminal, std::ostream& out) {
  ScheduleOptions options;
  CLI::App app("Show a pipeline schedule: who computes what and when, the bubble, the activations kept",
               "titan_train schedule");
  declare(app, options);
  app.footer("Example:\n  titan_train schedule --name ZBVZeroBubble --ranks 4 --microbatches 8");
  if (!parse_words(app, arguments, out)) return;
  show(options, app, terminal, out);
}

}  // namespace titan
