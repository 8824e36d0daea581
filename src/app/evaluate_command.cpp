// titan_train evaluate: scores texts, or choices of questions, with the model in a checkpoint.
#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/cli/options.h"
#include "titan/cli/program.h"
#include "titan/corpus/document_source.h"
#include "titan/text/utf8.h"
#include "titan/train/run.h"
#include "titan/train/score.h"

namespace titan {
namespace {

constexpr std::array<Rewording, 5> kEvaluateWords{
    {{" and is a conversation (training.dataset = \"chat\")", ": it is a conversation, which evaluate does not read"},
     {"data.text_field", "--text-field"},
     {"Read it with training.dataset = \"text\"", "Leave --nanogpt out"},
     {"training.dataset = \"nanogpt\"", "--nanogpt"},
     {"data.bad_record = \"skip\"", "--data.bad_record skip"}}};

/// Texts to score, and the report of their sums.
struct Evaluation {
  std::vector<ScoredText> texts;
  std::function<void(const std::vector<double>& sums)> report;
};

void say(const nlohmann::ordered_json& json) { std::cout << json_text(json) << '\n'; }

nlohmann::ordered_json perplexity_json(double sum, int64_t tokens, int64_t bytes) {
  const double loss = sum / static_cast<double>(std::max<int64_t>(1, tokens));
  nlohmann::ordered_json json{{"tokens", tokens}, {"loss", loss}, {"perplexity", std::exp(loss)}};
  // Ids have no bytes to count, and a number per token would not compare between tokenizers.
  if (bytes > 0) json["bits_per_byte"] = sum / std::numbers::ln2 / static_cast<double>(bytes);
  return json;
}

/// A row of the table; the JSON has the same numbers.
std::string perplexity_line(const std::string& name, const nlohmann::ordered_json& json) {
  return fmt::format("{:<12} {:>12} {:>10.5f} {:>12.4f} {:>10}\n", name, with_thousands(json["tokens"].get<int64_t>()),
                     json["loss"].get<double>(), json["perplexity"].get<double>(),
                     json.contains("bits_per_byte") ? fmt::format("{:.4f}", json["bits_per_byte"].get<double>()) : "");
}

Evaluation texts_of(const EvaluateOptions& options, const DataSection& config, const Tokenizer& tokenizer) {
  const std::unique_ptr<DocumentSource> source =
      open_dataset({.dataset = options.nanogpt ? "nanogpt" : "text",
                    .path = options.data,
                    .text_field = options.text_field.empty() ? config.text_field : options.text_field,
                    .bad_record = config.bad_record == "skip" ? BadRecord::skip : BadRecord::error,
                    .tokenizer = &tokenizer});
  source->check_tokenizer(tokenizer);
  Evaluation evaluation;
  std::vector<int64_t> bytes;
  Document document;
  while ((options.limit == 0 || std::ssize(bytes) < options.limit) && source->next(document)) {
    ScoredText& text = evaluation.texts.emplace_back();
    if (document.tokens) {
      document.tokens->append_to(text.tokens);
    } else {
      tokenizer.encode_framed(document.text, /*bos=*/true, /*eos=*/true, text.tokens);
    }
    bytes.push_back(std::ssize(document.text));
  }
  if (evaluation.texts.empty()) {
    throw Error(ExitCode::bad_data,
                fmt::format("evaluate: there is no document in {}; give texts that are not empty with --data",
                            source->description()));
  }
  evaluation.report = [texts = evaluation.texts, bytes, json = options.json](const std::vector<double>& sums) {
    double sum = 0;
    int64_t tokens = 0, all_bytes = 0;
    if (!json)
      std::cout << fmt::format("{:<12} {:>12} {:>10} {:>12} {:>10}\n", "document", "tokens", "loss", "perplexity",
                               "bits/byte");
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t scored = std::max<int64_t>(0, std::ssize(texts[i].tokens) - 1);
      nlohmann::ordered_json one = perplexity_json(sums[i], scored, bytes[i]);
      const std::string number = std::to_string(i + 1);
      if (json) {
        nlohmann::ordered_json line{{"document", i + 1}};
        line.update(one);
        say(line);
      } else {
        std::cout << perplexity_line(number, one);
      }
      sum += sums[i], tokens += scored, all_bytes += bytes[i];
    }
    const nlohmann::ordered_json all = perplexity_json(sum, tokens, all_bytes);
    if (!json) {
      std::cout << perplexity_line("all", all);
      return;
    }
    nlohmann::ordered_json line{{"documents", sums.size()}};
    line.update(all);
    say(line);
  };
  return evaluation;
}

/// Number of characters of valid UTF-8.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

struct Question {
  std::string context;
  std::vector<std::string> choices;
  int64_t answer = 0;
};

/// Throws Error(bad_data) with file and line.
Question parse_question(const std::string& place, const std::string& line) {
  const auto fail = [&](const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}; a question is {{\"context\": text, \"choices\": [texts], "
                                                "\"answer\": index}}",
                                                place, what));
  };
  const nlohmann::json json = parse_json(line, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("this is not a JSON object");
  Question question;
  for (const char* key : {"context", "choices", "answer"}) {
    if (!json.contains(key)) fail(fmt::format("{} is missing", key));
  }
  if (!json["context"].is_string()) fail("context is not text");
  if (!json["choices"].is_array() || json["choices"].empty()) fail("choices is not a list of texts, or is empty");
  question.context = json["context"].get<std::string>();
  for (const nlohmann::json& choice : json["choices"]) {
    if (!choice.is_string()) fail("choices is not a list of texts");
    question.choices.push_back(choice.get<std::string>());
    if (question.choices.back().empty()) fail("a choice is empty, and has no likelihood");
  }
  const int64_t count = std::ssize(question.choices);
  if (!json["answer"].is_number_integer()) fail("answer is not an index");
  question.answer = json["answer"].get<int64_t>();
  if (question.answer < 0 || question.answer >= count) {
    fail(fmt::format("answer is {} of {} choices, counted from 0", question.answer, count));
  }
  return question;
}

/// The token before a text that has no context; kNoId if the tokenizer has none.
int32_t prefix_of(const Tokenizer& tokenizer) {
  return tokenizer.bos_id() != Tokenizer::kNoId ? tokenizer.bos_id() : tokenizer.eos_id();
}

/// Encodes a text as EleutherAI's harness does. `options.adds_bos` decides whether the begin-of-text token precedes it;
/// if the option is not set, the tokenizer adds what it adds by default. Nothing is added to a text that begins with
/// that token's name.
std::vector<int32_t> encode_question(const std::string& text, const EvaluateOptions& options,
                                     const Tokenizer& tokenizer) {
  const int32_t prefix = prefix_of(tokenizer);
  const bool has_bos = prefix != Tokenizer::kNoId && text.starts_with(tokenizer.token_name(prefix));
  if (has_bos || options.adds_bos == false) return tokenizer.encode(text, false, false);
  if (!options.adds_bos) return tokenizer.encode_by_default(text);
  std::vector<int32_t> ids = tokenizer.encode(text, false, false);
  ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

/// Follows EleutherAI's harness: white space at the context's end moves to the choice, both are tokenized together, and
/// the tokens after the number of those of the context alone belong to the choice.
ScoredText scored_choice(const Question& question, const std::string& choice, const EvaluateOptions& options,
                         const Tokenizer& tokenizer, const std::string& place) {
  std::string context = question.context;
  std::string continuation = options.delimiter + choice;
  const size_t end = strip_characters(context, nullptr, /*left=*/false).size();
  continuation.insert(0, context.substr(end));
  context.resize(end);
  ScoredText text;
  if (context.empty()) {
    const int32_t prefix = prefix_of(tokenizer);
    if (prefix == Tokenizer::kNoId) {
      throw Error(ExitCode::bad_data, fmt::format("{}: the context is empty, and this tokenizer has no token to begin "
                                                  "a text with; give the question a context",
                                                  place));
    }
    const std::vector<int32_t> ids = tokenizer.encode(continuation, false, false);
    if (ids.empty() || ids[0] != prefix) text.tokens = {prefix};
    text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
    return text;
  }
  const std::vector<int32_t> whole = encode_question(context + continuation, options, tokenizer);
  text.tokens = encode_question(context, options, tokenizer);
  text.first = std::ssize(text.tokens);
  if (text.first < std::ssize(whole)) text.tokens.insert(text.tokens.end(), whole.begin() + text.first, whole.end());
  return text;
}

/// Drops the context's beginning if a choice and its context are longer than the window, as in the harness; true if it
/// did. Throws Error(bad_data) if the choice alone is longer, or adds no token.
bool cut_to_window(ScoredText& text, int64_t window, const std::string& place) {
  const int64_t surplus = std::ssize(text.tokens) - (window + 1);
  if (surplus > 0) {
    if (text.first - surplus < 1) {
      throw Error(ExitCode::bad_data, fmt::format("{}: a choice is longer than the window of {} tokens; raise "
                                                  "--window",
                                                  place, window));
    }
    text.tokens.erase(text.tokens.begin(), text.tokens.begin() + surplus);
    text.first -= surplus;
  }
  if (text.first >= std::ssize(text.tokens)) {
    throw Error(ExitCode::bad_data,
                fmt::format("{}: a choice adds no token to its context; leave the question out", place));
  }
  return surplus > 0;
}

/// `sums`: of all choices of all questions, in order.
void report_answers(const std::vector<Question>& questions, const std::vector<double>& sums, bool json) {
  size_t next = 0, right = 0, right_normalised = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    std::vector<double> likelihoods, normalised;
    for (const std::string& choice : questions[i].choices) {
      likelihoods.push_back(-sums[next++]);
      normalised.push_back(likelihoods.back() / static_cast<double>(characters(choice)));
    }
    const auto best = [](const std::vector<double>& values) {
      return std::max_element(values.begin(), values.end()) - values.begin();
    };
    right += best(likelihoods) == questions[i].answer ? 1 : 0;
    right_normalised += best(normalised) == questions[i].answer ? 1 : 0;
    if (!json) continue;
    say({{"question", i + 1},
         {"log_likelihoods", likelihoods},
         {"choice", best(likelihoods)},
         {"choice_normalised", best(normalised)},
         {"answer", questions[i].answer}});
  }
  const auto share = [&](size_t count) { return static_cast<double>(count) / static_cast<double>(questions.size()); };
  if (json) {
    say({{"questions", questions.size()}, {"acc", share(right)}, {"acc_norm", share(right_normalised)}});
    return;
  }
  std::cout << fmt::format("{} questions: accuracy {:.4f}, with likelihoods by character {:.4f}\n", questions.size(),
                           share(right), share(right_normalised));
}

Evaluation questions_of(const EvaluateOptions& options, const Tokenizer& tokenizer, int64_t window) {
  if (options.adds_bos == true && tokenizer.bos_id() == Tokenizer::kNoId) {
    throw Error(ExitCode::bad_config,
                "evaluate: --add-bos-token needs a tokenizer with a begin-of-text token; leave it out");
  }
  Evaluation evaluation;
  std::vector<Question> questions;
  int64_t cut = 0;
  const std::string data = read_text_file(options.data, ExitCode::bad_data);
  const std::vector<std::string> lines = split(data, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (trim(lines[i]).empty()) continue;
    if (options.limit > 0 && std::ssize(questions) == options.limit) break;
    const std::string place = fmt::format("{}:{}", options.data, i + 1);
    questions.push_back(parse_question(place, lines[i]));
    for (const std::string& choice : questions.back().choices) {
      ScoredText text = scored_choice(questions.back(), choice, options, tokenizer, place);
      if (cut_to_window(text, window, place)) ++cut;
      evaluation.texts.push_back(std::move(text));
    }
  }
  if (questions.empty()) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("evaluate: there is no question in {}; give a .jsonl file with one question a line", options.data));
  }
  evaluation.report = [questions, cut, window, json = options.json](const std::vector<double>& sums) {
    if (cut > 0) {
      std::cerr << fmt::format(
          "evaluate: {} choices and their contexts are longer than the window of {} tokens; the "
          "beginnings were left out (--window)\n",
          cut, window);
    }
    report_answers(questions, sums, json);
  };
  return evaluation;
}

}  // namespace

int run_evaluate(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<EvaluateOptions> options = parse_evaluate(arguments, std::cout);
  if (!options) return 0;
  LoadedConfig job = load_checkpoint_job(schema, options->checkpoint, options->rest);
  if (const int code = report_config_problems(job)) return code;
  const std::shared_ptr<const Tokenizer> tokenizer = open_job_tokenizer(job, /*needs_text=*/options->has_choices);
  const int64_t window = options->window > 0 ? options->window : job.config.training.seq_len;
  Evaluation evaluation;
  in_words_of_command(kEvaluateWords, [&] {
    evaluation = options->has_choices ? questions_of(*options, *tokenizer, window)
                                      : texts_of(*options, job.config.data, *tokenizer);
  });
  set_context(job, window, "lower --window");
  return run_inference(schema, job.config, [&](Run& run) {
    const std::vector<double> sums = negative_log_likelihoods(run, evaluation.texts, window);
    if (run.world.rank == 0) evaluation.report(sums);
    std::cout << std::flush;
  });
}

}  // namespace titan
