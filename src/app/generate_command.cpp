// titan_train generate: text from the model in a checkpoint.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/app/rank_session.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/text.h"
#include "titan/cli/options.h"
#include "titan/job/generation.h"
#include "titan/job/job.h"
#include "titan/job/start.h"
#include "titan/text/chat.h"
#include "titan/train/generate.h"
#include "titan/train/hugging_face.h"
#include "titan/train/open_data.h"
#include "titan/train/run.h"

namespace titan {
namespace {

// Some paragraphs. A model that does not end its text would write until its context is full.
constexpr int64_t kUsualTokens = 256;

std::vector<std::string> prompts_of(const GenerateOptions& options) {
  if (!options.prompts.empty()) return options.prompts;
  if (options.file.empty()) {
    throw Error(ExitCode::bad_config,
                "generate: give a text to continue with --prompt, or --file FILE (- for standard "
                "input)");
  }
  std::error_code unknown;
  if (std::filesystem::is_directory(options.file, unknown)) {
    throw Error(ExitCode::bad_config,
                fmt::format("generate: --file {} is a folder; name a file with one prompt", options.file));
  }
  std::string text = options.file != "-" ? read_text_file(options.file, ExitCode::bad_data, SIZE_MAX, kKindsOfText)
                                         : std::string(std::istreambuf_iterator<char>(std::cin), {});
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw Error(ExitCode::bad_data,
                "generate: the prompt is in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  // Editors add a byte order mark and a final newline; a model would continue after an empty line.
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return {text};
}

/// Throws for a launch of several processes: they do not share standard input.
void refuse_shared_input(const LoadedConfig& job, const std::string& remedy) {
  if (detect_launch(job.config).size == 1) return;
  throw Error(ExitCode::bad_config,
              fmt::format("generate: several processes have no standard input in common; {}", remedy));
}

std::vector<std::vector<int32_t>> encode_prompts(const std::vector<std::string>& prompts, const Tokenizer& tokenizer,
                                                 bool bos) {
  std::vector<std::vector<int32_t>> encoded;
  for (const std::string& prompt : prompts) {
    if (trim(prompt).empty()) {
      throw Error(ExitCode::bad_data, "generate: a prompt is empty; give the beginning of a text");
    }
    encoded.push_back(tokenizer.encode(prompt, bos, /*eos=*/false));
  }
  return encoded;
}

/// Ids that end a text: eos_token_id (one or a list) of generation_config.json, or else of config.json.
std::vector<int32_t> end_ids(const std::filesystem::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code unknown;
    if (!std::filesystem::exists(folder / name, unknown)) continue;
    const nlohmann::json settings = read_settings_file(folder / name);
    const nlohmann::json ids = settings.value("eos_token_id", nlohmann::json::array());
    std::vector<int32_t> found;
    for (const nlohmann::json& id : ids.is_array() ? ids : nlohmann::json::array({ids})) {
      if (id.is_number_integer()) found.push_back(id.get<int32_t>());
    }
    if (!found.empty()) return found;
  }
  return {};
}

/// Adds the tokenizer's end of text and the ids of the model's folder to the user's ids.
void add_stop_ids(GenerationOptions& generation, const Tokenizer& tokenizer, const JobConfig& config) {
  for (const int32_t id : generation.stop_ids) {
    if (id >= 0 && id < tokenizer.vocabulary_size()) continue;
    throw Error(ExitCode::bad_config, fmt::format("generate: --stop-id {} is not a token; the tokenizer has 0 to {}",
                                                  id, tokenizer.vocabulary_size() - 1));
  }
  if (tokenizer.eos_id() != Tokenizer::kNoId) generation.stop_ids.push_back(tokenizer.eos_id());
  std::vector<int32_t> ends;
  if (!config.model.from_hf.empty()) ends = end_ids(config.model.from_hf);
  if (ends.empty()) ends = end_ids(tokenizer_location(config));
  generation.stop_ids.insert(generation.stop_ids.end(), ends.begin(), ends.end());
}

std::string_view name(GeneratedText::End end) {
  return end == GeneratedText::End::length ? "length" : end == GeneratedText::End::token ? "stop token" : "stop text";
}

nlohmann::ordered_json as_json(const std::string& prompt, const GeneratedText& text) {
  return {{"prompt", prompt},       {"text", text.text},
          {"tokens", text.tokens},  {"log_probabilities", text.log_probabilities},
          {"end", name(text.end)},  {"first_token_seconds", text.first_seconds},
          {"seconds", text.seconds}};
}

/// Turns of the user and answers of the model, until the end of standard input; or one turn per prompt.
class Conversation {
 public:
  Conversation(Run& run, const GenerateOptions& options, const ChatTemplate& form, const Tokenizer& tokenizer,
               int64_t context, bool can_grow)
      : run_(run), options_(options), form_(form), tokenizer_(tokenizer), context_(context), can_grow_(can_grow) {
    if (!options.system.empty()) messages_.push_back({"system", options.system});
  }

  void hold() {
    for (const std::string& prompt : options_.prompts) {
      if (trim(prompt).empty()) throw Error(ExitCode::bad_data, "generate: a turn is empty; say something");
      answer(prompt);
    }
    if (!options_.prompts.empty()) return;
    const bool at_terminal = ::isatty(STDIN_FILENO) != 0;
    const auto ask = [&] {
      if (at_terminal && !options_.json) std::cout << "> " << std::flush;
    };
    ask();
    for (std::string line; std::getline(std::cin, line); ask()) {
      if (line.ends_with('\r')) line.pop_back();
      if (!trim(line).empty()) answer(line);
    }
  }

 private:
  void answer(const std::string& said) {
    messages_.push_back({"user", said});
    const EncodedChat prompt = form_.prompt(messages_);
    if (!prompt.problem.empty()) {
      throw Error(ExitCode::bad_data, fmt::format("generate: {}{}", prompt.problem,
                                                  options_.system.empty() ? "" : "; try it without --system"));
    }
    const std::vector<int32_t>& ids = prompt.ids;
    if (std::ssize(ids) >= context_) {
      throw Error(ExitCode::bad_data, fmt::format("generate: the conversation makes {} tokens, and the context holds "
                                                  "{}; {}begin a new one",
                                                  ids.size(), context_, can_grow_ ? "raise --context, or " : ""));
    }
    const bool prints = run_.world.rank == 0;
    const auto show = [&](size_t, const std::string& text) {
      if (prints && !options_.json) std::cout << text << std::flush;
    };
    const GeneratedText text =
        generator_for(ids).generate({new_ids(ids)}, options_.generation, tokenizer_, show).front();
    if (prints && !options_.json) std::cout << std::endl;
    if (prints && options_.json) std::cout << json_text(as_json(said, text)) << std::endl;
    messages_.push_back({"assistant", text.text});
  }

  /// Keeps the generator, and what it has read, if `ids` continue that.
  Generator& generator_for(const std::vector<int32_t>& ids) {
    const bool continues = generator_ && std::ssize(generator_->tokens(0)) < std::ssize(ids) &&
                           std::equal(generator_->tokens(0).begin(), generator_->tokens(0).end(), ids.begin());
    if (!continues) generator_ = std::make_unique<Generator>(run_, 1, context_, !options_.uncached);
    return *generator_;
  }
  std::vector<int32_t> new_ids(const std::vector<int32_t>& ids) const {
    return {ids.begin() + std::ssize(generator_->tokens(0)), ids.end()};
  }

  Run& run_;
  const GenerateOptions& options_;
  const ChatTemplate& form_;
  const Tokenizer& tokenizer_;
  int64_t context_;
  bool can_grow_;
  std::vector<ChatMessage> messages_;
  std::unique_ptr<Generator> generator_;
};

/// What a run of the command computes: a conversation, or texts that continue prompts.
struct Work {
  std::shared_ptr<const ChatTemplate> chat = nullptr;  ///< of the conversation; null: prompts
  std::vector<std::string> prompts = {};
  std::vector<std::vector<int32_t>> encoded = {};  ///< of each prompt
  int64_t context = 0;                             ///< tokens
  bool can_grow = false;                           ///< the model's context is longer
};

Work prepare_chat(LoadedConfig& job, GenerateOptions& options, const std::shared_ptr<const Tokenizer>& tokenizer) {
  // Models read up to 131,072 tokens, and the cache of keys and values is allocated for all of them.
  constexpr int64_t kUsualContext = 4096;
  if (!options.file.empty()) {
    throw Error(ExitCode::bad_config,
                "generate: --chat reads turns from --prompt or from standard input; leave out "
                "--file");
  }
  if (options.prompts.empty()) refuse_shared_input(job, "give the turns of --chat with --prompt");
  Work work{.chat = open_chat_template(job.config, tokenizer)};
  GenerationOptions& generation = options.generation;
  const auto& ends = work.chat->stop_ids();
  generation.stop_ids.insert(generation.stop_ids.end(), ends.begin(), ends.end());
  if (!work.chat->stop_text().empty()) generation.stop_texts.push_back(work.chat->stop_text());
  const int64_t longest = longest_context(job);
  work.context = options.context.value_or(std::min(longest, kUsualContext));
  work.can_grow = work.context < longest;
  generation.max_new_tokens = options.max_new_tokens.value_or(kUsualTokens);
  set_context(job, work.context, "lower --context");
  return work;
}

Work prepare_prompts(CheckpointJob& job, GenerateOptions& options, const Tokenizer& tokenizer) {
  if (options.file == "-") refuse_shared_input(job, "give the prompt with --prompt or --file FILE");
  Work work{.prompts = prompts_of(options)};
  // A run's own model has seen BOS before every text; another one what transformers puts there, which may be nothing.
  work.encoded = encode_prompts(work.prompts, tokenizer, /*bos=*/job.is_of_run || tokenizer.adds_bos());
  size_t longest = 0;
  for (const auto& ids : work.encoded) longest = std::max(longest, ids.size());
  const auto prompt_tokens = static_cast<int64_t>(longest);
  const int64_t limit = longest_context(job), most = std::min(options.context.value_or(limit), limit);
  GenerationOptions& generation = options.generation;
  generation.max_new_tokens =
      options.max_new_tokens.value_or(std::clamp<int64_t>(most - prompt_tokens, 1, kUsualTokens));
  work.context = options.context.value_or(prompt_tokens + generation.max_new_tokens);
  if (prompt_tokens >= most) {
    throw Error(ExitCode::bad_data,
                fmt::format("generate: the prompt makes {} tokens, and the context holds {}; shorten the prompt{}",
                            prompt_tokens, most, most < limit ? " or raise --context" : ""));
  }
  set_context(job, work.context, options.context ? "lower --context" : "lower --max-new-tokens");
  return work;
}

void print_texts(Run& run, const Work& work, const GenerateOptions& options, const Tokenizer& tokenizer) {
  Generator generator(run, std::ssize(work.encoded), work.context, !options.uncached);
  const std::vector<std::string>& prompts = work.prompts;
  const bool prints = run.world.rank == 0;
  const bool streams = prints && !options.json && prompts.size() == 1;
  if (streams) std::cout << prompts[0] << std::flush;
  const auto show = [&](size_t, const std::string& text) {
    if (streams) std::cout << text << std::flush;
  };
  const std::vector<GeneratedText> texts = generator.generate(work.encoded, options.generation, tokenizer, show);
  if (streams) std::cout << std::endl;
  if (!prints || streams) return;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (options.json) {
      std::cout << json_text(as_json(prompts[i], texts[i])) << '\n';
    } else {
      std::cout << fmt::format("--- {} of {}\n{}{}\n", i + 1, texts.size(), prompts[i], texts[i].text);
    }
  }
  std::cout << std::flush;
}

}  // namespace

int run_generate(const Schema& schema, std::span<const std::string> arguments) {
  std::optional<GenerateOptions> options = parse_generate(arguments, std::cout);
  if (!options) return 0;
  CheckpointJob job = load_checkpoint_job(schema, options->checkpoint, options->rest);
  for (Problem& problem : generation_problems(job.config, job.origins)) job.problems.push_back(std::move(problem));
  sort_by_place(job.problems);
  if (const int code = report_config_problems(job)) return code;
  const std::shared_ptr<const Tokenizer> tokenizer = open_job_tokenizer(job);
  add_stop_ids(options->generation, *tokenizer, job.config);
  const Work work = options->chat ? prepare_chat(job, *options, tokenizer) : prepare_prompts(job, *options, *tokenizer);
  return run_inference(schema, job.config, [&](Run& run) {
    if (work.chat) {
      Conversation(run, *options, *work.chat, *tokenizer, work.context, work.can_grow).hold();
    } else {
      print_texts(run, work, *options, *tokenizer);
    }
  });
}

}  // namespace titan
