#include "checkpoint_job.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/app/rank_session.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/cli/facts.h"
#include "titan/corpus/vocabulary.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/job/start.h"
#include "titan/model/model.h"
#include "titan/report/attempt_record.h"
#include "titan/tools/convert.h"
#include "titan/train/run.h"
#include "titan/train/state_dict.h"

namespace titan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_hugging_face(const fs::path& folder) {
  std::error_code unknown;
  return fs::exists(folder / "config.json", unknown);
}

/// The options recorded by a checkpoint's run, as words of a command line.
void add_recorded(const Json& section, const std::string& prefix, std::vector<std::string>& words) {
  for (const auto& [key, value] : section.items()) {
    if (value.is_object()) add_recorded(value, prefix + key + ".", words);
    if (value.is_string()) words.push_back(fmt::format("--{}{}={}", prefix, key, value.get<std::string>()));
    if (value.is_number()) words.push_back(fmt::format("--{}{}={}", prefix, key, value.dump()));
  }
}

/// Adds a recorded ModelRequest as options; imported weights record one instead of a config.
void add_request(const Json& request, std::vector<std::string>& words) {
  Json sizes = request, model = Json::object();
  for (const char* key : {"name", "flavor", "norm_type", "rope_scaling", "max_seq_len"}) {
    if (sizes.contains(key)) model[key] = sizes.at(key);
    sizes.erase(key);
  }
  sizes.erase("seq_len");
  model["override"] = sizes;
  add_recorded(model, "model.", words);
}

/// The facts about run and model in a checkpoint's manifest.
Json recorded_facts(Storage& storage, const fs::path& folder) {
  const OpenCheckpoint checkpoint(storage, folder, /*all_sizes=*/true);
  const bool has_facts = checkpoint.manifest() && checkpoint.manifest()->facts.is_object();
  return has_facts ? checkpoint.manifest()->facts : Json::object();
}

struct StoredModel {
  std::vector<std::string> words;  // options that select the model and its weights
  int64_t length = 2048;           // of the training sequences, if known
  bool is_of_run = false;          // else converted or imported weights
};

StoredModel stored_model(Storage& storage, const fs::path& folder) {
  StoredModel stored;
  std::vector<std::string>& words = stored.words;
  if (is_hugging_face(folder)) {
    words.push_back("--model.from_hf=" + folder.string());
    return stored;
  }
  words.push_back("--checkpoint.initial_load_path=" + folder.string());
  const Json facts = recorded_facts(storage, folder);
  const Json config = facts.value("config", Json::object());
  if (!config.contains("model")) {  // no run saved it: converted weights have facts instead of a config
    add_request(facts.value(kModelFacts, Json::object()).value("request", Json::object()), words);
    if (const std::string tokenizer = facts.value(kTokenizerFact, ""); !tokenizer.empty()) {
      words.push_back("--model.tokenizer_path=" + tokenizer);
    }
    return stored;
  }
  stored.is_of_run = true;
  const Json training = config.value("training", Json());
  if (training.is_object() && training.value("seq_len", Json()).is_number_unsigned()) {
    stored.length = training.at("seq_len").get<int64_t>();
  }
  Json model = config.at("model");
  model.erase("from_hf");  // its folder may be gone, and the other options hold what was read from it
  add_recorded(model, "model.", words);
  const Json data = config.value("data", Json());
  for (const char* key : {"chat_template", "chat"}) {  // conversations must be written as the model was trained on them
    if (data.is_object() && data.contains(key)) add_recorded({{key, data.at(key)}}, "data.", words);
  }
  return stored;
}

/// The newest checkpoint in `root` that the run in `run` does not distrust (disagreement.json); nothing if there is
/// none. Throws Error(storage) if all are distrusted.
std::optional<fs::path> newest_trusted_in(Storage& storage, const fs::path& run, const fs::path& root) {
  std::vector<FoundCheckpoint> found = find_checkpoints(storage, root);
  std::erase_if(found, [](const FoundCheckpoint& one) { return one.is_unseen; });
  if (found.empty()) return std::nullopt;
  const std::optional<int64_t> last = last_agreeing_step(run, root);
  const auto trusted =
      std::find_if(found.begin(), found.end(), [&](const FoundCheckpoint& one) { return !last || one.step <= *last; });
  const fs::path newest = root / step_folder(found.front().step);
  if (trusted == found.begin()) return newest;
  const std::string why =
      fmt::format("{} trusts no checkpoint after step {}", (run / kDisagreementFile).string(), *last);
  const std::string way_out = fmt::format("name it ({}) to take it all the same", newest.string());
  if (trusted == found.end()) {
    throw Error(ExitCode::storage, fmt::format("{}, and there is none up to it; {}", why, way_out));
  }
  std::cerr << fmt::format("warning: {}: {} is taken, not the newest; {}\n", why, step_folder(trusted->step), way_out);
  return root / step_folder(trusted->step);
}

}  // namespace

fs::path newest_checkpoint(const fs::path& folder) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  std::error_code unknown;
  if (!fs::is_directory(folder, unknown) || holds_checkpoint(*storage, folder)) return folder;
  const fs::path parent = fs::absolute(folder / "").lexically_normal().parent_path().parent_path();
  for (const auto& [run, root] : {std::pair(parent, folder), std::pair(folder, folder / "checkpoint")}) {
    if (std::optional<fs::path> newest = newest_trusted_in(*storage, run, root)) return *newest;
  }
  return folder;
}

fs::path find_model(const fs::path& folder) {
  expect_folder(folder);
  if (is_hugging_face(folder)) return folder;
  fs::path checkpoint = newest_checkpoint(folder);
  if (holds_checkpoint(*make_posix_storage(), checkpoint)) return checkpoint;
  throw Error(ExitCode::storage,
              fmt::format("{} holds no model: name a checkpoint (step-N), the folder of a run, or a folder with "
                          "config.json and safetensors",
                          folder.string()));
}

CheckpointJob load_checkpoint_job(const Schema& schema, const fs::path& checkpoint,
                                  std::span<const std::string> words) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const fs::path folder = find_model(checkpoint.has_filename() ? checkpoint : checkpoint.parent_path());
  const auto given = [&](std::string_view key) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word.find(key) != word.npos; });
  };
  // Later words override earlier ones, but some options may be given only once: a default must not come first there.
  std::vector<std::string> all;
  StoredModel stored = stored_model(*storage, folder);
  for (std::string& word : stored.words) {
    if (!given(word.substr(0, word.find('=')))) all.push_back(std::move(word));
  }
  for (const char* word : {"--checkpoint.enable=true", "--checkpoint.load_only=true", "--metrics.quiet=true",
                           "--training.mixed_precision_param=float32",
                           "--training.seq_len=8"}) {  // a length that every model and layout takes
    const std::string text(word);
    if (!given(text.substr(0, text.find('=')))) all.push_back(text);
  }
  all.insert(all.end(), words.begin(), words.end());
  std::vector<ConfigCheck> checks = job_checks();
  checks.push_back(world_check());
  CheckpointJob loaded{load_config(schema, all, checks), stored.is_of_run};
  // Problems of training's lengths and batches do not concern a command that trains nothing.
  std::erase_if(loaded.problems, [&](const Problem& problem) {
    const bool is_default = problem.where.kind == Place::Kind::default_value;
    return (is_default || problem.key.starts_with("training.")) && !given("--" + problem.key);
  });
  for (Problem& problem : reader_device_problems(loaded.config, loaded.origins)) {
    loaded.problems.push_back(std::move(problem));
  }
  sort_by_place(loaded.problems);
  if (loaded.problems.empty() && loaded.config.training.mixed_precision_param == ElementType::bfloat16) {
    // fp32 masters serve the optimizer alone: without one they would only double the memory.
    loaded.config.training.dtype = ElementType::bfloat16;
  }
  if (loaded.problems.empty() && !loaded.config.checkpoint.initial_load_path) {
    throw Error(
        ExitCode::storage,
        fmt::format("{} holds no weights; put the model's *.safetensors beside its config.json", folder.string()));
  }
  use_found_inputs(loaded, find_inputs(loaded));
  const int64_t most = loaded.config.model.max_seq_len;
  if (!given("--training.seq_len")) {
    loaded.config.training.seq_len = most > 0 ? std::min(most, stored.length) : stored.length;
  }
  return loaded;
}

LoadedConfig load_run_job(const Schema& schema, std::span<const std::string> words,
                          std::span<const ConfigCheck> checks) {
  LoadedConfig loaded = load_config(schema, words, checks);
  const std::string theirs = loaded.config.model.from_hf;
  std::error_code unknown;
  if (theirs.empty() || !loaded.config.checkpoint.enable || fs::is_directory(theirs, unknown)) return loaded;
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const fs::path root = fs::path(loaded.config.job.dump_folder) / loaded.config.checkpoint.folder;
  for (const FoundCheckpoint& found : find_checkpoints(*storage, root)) {
    if (found.is_unseen) continue;
    const Json facts = recorded_facts(*storage, root / step_folder(found.step));
    const Json model = facts.value("config", Json::object()).value("model", Json::object());
    if (model.value("from_hf", "") != theirs) break;
    std::vector<std::string> all;
    add_recorded(model, "model.", all);
    all.insert(all.end(), words.begin(), words.end());
    all.emplace_back("--model.from_hf=");
    loaded = load_config(schema, all, checks);
    loaded.config.model.from_hf = theirs;  // so that the next checkpoint records it, should the folder come back
    break;
  }
  return loaded;
}

std::shared_ptr<const Tokenizer> open_job_tokenizer(const LoadedConfig& job, bool needs_text) {
  if (!job.origins.is_set("model.tokenizer_path") && !job.origins.is_set("model.hf_assets_path")) {
    throw Error(ExitCode::bad_data,
                "there is no tokenizer beside the weights, nor do they name one; name it with "
                "--model.tokenizer_path");
  }
  const std::string place = tokenizer_location(job.config);
  std::error_code unknown;
  if (!fs::exists(place, unknown)) {
    throw Error(ExitCode::bad_data, fmt::format("the checkpoint's tokenizer {} is not here; name it with "
                                                "--model.tokenizer_path",
                                                place));
  }
  std::shared_ptr<const Tokenizer> tokenizer = open_vocabulary(place, std::cerr);
  if (needs_text && !tokenizer->reads_text()) {
    throw Error(ExitCode::bad_data, fmt::format("{} holds ids and no tokenizer: name the one that made them with "
                                                "--model.tokenizer_path",
                                                place));
  }
  return tokenizer;
}

int64_t longest_context(const LoadedConfig& job) {
  return describe_model(make_model_request(job.config, 1)).longest_text;
}

void set_context(LoadedConfig& job, int64_t tokens, const std::string& remedy) {
  JobConfig& config = job.config;
  if (const int64_t longest = longest_context(job); tokens > longest) {
    throw Error(ExitCode::bad_data,
                fmt::format("the model's context is {} tokens{}, and {} are asked for; {}", longest,
                            config.model.rope_scaling == "dynamic" ? " before its dynamic rotary scaling begins" : "",
                            tokens, remedy));
  }
  // The config checks refuse a length that tensor- and context-parallel ranks cannot split evenly.
  const int64_t unit = 2 * config.parallelism.tensor_parallel_degree * config.parallelism.context_parallel_degree;
  config.training.seq_len = (tokens + unit - 1) / unit * unit;
  if (config.model.max_seq_len > 0) {
    config.model.max_seq_len = std::max(config.model.max_seq_len, config.training.seq_len);
  }
  describe_model(make_model_request(config, 1));
}

int run_inference(const Schema& schema, const JobConfig& config, const std::function<void(Run&)>& work) {
  keep_freed_memory();
  RankSession session(schema, config, detect_launch(config), nullptr, /*output_is_result=*/true);
  std::unique_ptr<Run> run;
  try {
    run = build_inference(config, session.join(), session.log());
    work(*run);
    close_communicators(*run);
  } catch (...) {
    session.fail();
  }
  run.reset();
  return session.end(ExitCode::success);
}

}  // namespace titan
