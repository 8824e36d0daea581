#include "titan/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <ostream>

#include "titan/base/error.h"
#include "titan/cli/program.h"

namespace titan {
namespace {

/// CLI::Range accepts nan for a number in its range.
CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& word) {
        double number = 0;
        const bool fits = CLI::detail::lexical_cast(word, number) && number >= least && number <= most;
        return fits ? std::string() : fmt::format("{} is not a number from {:g} to {:g}", word, least, most);
      },
      fmt::format("NUMBER from {:g} to {:g}", least, most));
}

}  // namespace

std::optional<GenerateOptions> parse_generate(std::span<const std::string> arguments, std::ostream& out) {
  GenerateOptions options;
  SamplingOptions& sampling = options.generation.sampling;
  CLI::App app("Text from the model in a checkpoint", "titan_train generate");
  app.add_option("CHECKPOINT", options.checkpoint,
                 "A checkpoint, the folder of a run (its newest one), or a folder that transformers loads")
      ->required();
  app.add_option("--prompt", options.prompts, "The text to continue; several make a batch")

      ->allow_extra_args(false);
  app.add_option("--file", options.file, "A file with one prompt, or - for standard input")->excludes("--prompt");
  app.add_option("--max-new-tokens", options.max_new_tokens,
                 "New tokens at most; default 256, or what the context leaves")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  app.add_option("--temperature", sampling.temperature, "Softmax temperature; 0: greedy")
      ->check(number_between(0, 100))
      ->capture_default_str();
  auto* top_k = app.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens; 0: all")->check(at_least(0));
  auto* top_p =
      app.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that together have this probability")
          ->check(number_between(1e-6, 1));
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "Repetition penalty; above 1 makes earlier tokens less likely")
      ->check(number_between(0.01, 100));
  auto* seed = app.add_option("--seed", options.seed, "Random seed of the sampling; the same seed gives the same text")
                   ->check(at_least(0));
  app.add_option("--stop", options.generation.stop_texts, "End at this text, which is left out; may be repeated")

      ->allow_extra_args(false);
  app.add_option("--stop-id", options.generation.stop_ids, "End at this token; may be repeated")

      ->allow_extra_args(false);
  app.add_option("--context", options.context, "Tokens of prompt and text together; else as many as are asked for")
      ->check(CLI::Range(int64_t{2}, kMostTokens));
  app.add_option("--dtype", options.dtype, "float32 or bfloat16; else float32")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_flag("--json", options.json, "One JSON object for each prompt, on a line of its own");
  app.add_flag("--no-cache", options.uncached, "Do not use the KV cache");
  auto* chat = app.add_flag("--chat", options.chat,
                            "A conversation in the model's template: --prompt is one turn; else each line of standard "
                            "input is");
  app.add_option("--system", options.system, "System message")->needs(chat);
  app.allow_extras();
  app.footer(
      "--section.key options follow, such as --parallelism.tensor_parallel_degree=2 under launch or torchrun.\n\n"
      "Examples:\n"
      "  titan_train generate outputs/mine --prompt \"Once upon a time\" --temperature 0.7 --top-p 0.9\n"
      "  titan_train generate Qwen2.5-0.5B-Instruct/ --chat");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  sampling.seed = static_cast<uint64_t>(options.seed);
  if (std::erase(options.rest, "-") > 0) {
    if (!options.prompts.empty() || !options.file.empty()) {
      throw Error(ExitCode::bad_config,
                  "generate: - reads the prompt from standard input; leave out --prompt and --file");
    }
    options.file = "-";
  }
  for (const CLI::Option* option : {top_k, top_p, seed}) {
    if (option->count() == 0 || sampling.temperature > 0) continue;
    throw Error(ExitCode::bad_config, fmt::format("generate: {} chooses among likely tokens, and --temperature 0 takes "
                                                  "the likeliest; give a --temperature above 0, or leave it out",
                                                  option->get_name()));
  }
  for (const std::string& stop : options.generation.stop_texts) {
    if (stop.empty()) throw Error(ExitCode::bad_config, "generate: --stop is empty, and every text ends with that");
  }
  if (!options.dtype.empty()) options.rest.push_back("--training.mixed_precision_param=" + options.dtype);
  return options;
}

std::optional<EvaluateOptions> parse_evaluate(std::span<const std::string> arguments, std::ostream& out) {
  EvaluateOptions options;
  CLI::App app("Loss and perplexity of texts, or accuracy on multiple-choice questions", "titan_train evaluate");
  app.add_option("CHECKPOINT", options.checkpoint,
                 "A checkpoint, the folder of a run (its newest one), or a folder that transformers loads")
      ->required();
  app.add_option("--data", options.data, "Texts as for training (a file, a folder, a glob); with --choices a .jsonl")
      ->required();
  app.add_option("--text-field", options.text_field,
                 "Field of a .jsonl record that holds the text; else --data.text_field");
  auto* choices = app.add_flag("--choices", options.has_choices,
                               "The data are questions: {\"context\": …, \"choices\": [ … ], \"answer\": index}");
  app.add_flag("--nanogpt", options.nanogpt,
               "The .bin files are nanoGPT's: uint16 ids without a header, documents ended by the tokenizer")
      ->excludes(choices);
  app.add_option("--delimiter", options.delimiter, "Between a question's context and each choice; else a space")
      ->needs(choices);
  bool with_bos = false, without_bos = false;
  auto* with = app.add_flag("--add-bos-token", with_bos,
                            "Questions begin with the begin-of-text token; else if the tokenizer adds it to a text");
  with->needs(choices);
  app.add_flag("--no-bos-token", without_bos, "They do not")->needs(choices)->excludes(with);
  app.add_option("--window", options.window,
                 "Tokens that are read together; else as many as the run trained on, or 2048")
      ->check(CLI::Range(int64_t{2}, kMostTokens));
  app.add_option("--limit", options.limit, "Only so many documents or questions")->check(at_least(1));
  app.add_option("--dtype", options.dtype, "float32 or bfloat16; else float32")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_flag("--json", options.json, "One JSON object for each document or question, and one for all");
  app.allow_extras();
  app.footer(
      "--section.key options follow, such as --parallelism.tensor_parallel_degree=2 under launch or torchrun.\n\n"
      "Examples:\n"
      "  titan_train evaluate outputs/mine --data test.jsonl\n"
      "  titan_train evaluate outputs/mine --data questions.jsonl --choices");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  if (with_bos || without_bos) options.adds_bos = with_bos;
  if (!options.dtype.empty()) options.rest.push_back("--training.mixed_precision_param=" + options.dtype);
  return options;
}

}  // namespace titan
