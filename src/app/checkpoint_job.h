// Jobs whose model is defined by a checkpoint: for a command that runs inference (detects the checkpoint's format), and
// for a run that resumes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/config/load.h"
#include "titan/text/tokenizer.h"

namespace titan {

struct Run;

/// The newest checkpoint in a run's folder or its checkpoint folder; any other `folder` is returned unchanged. Passes
/// over those that the run's disagreement.json does not trust, with a warning; throws Error(storage) if that leaves
/// none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& folder);

/// `folder` if transformers can load it, else its newest_checkpoint. Throws Error(storage) for a folder without a
/// model.
std::filesystem::path find_model(const std::filesystem::path& folder);

struct CheckpointJob : LoadedConfig {
  bool is_of_run = false;  // this program trained the model, and its documents began with BOS
};

/// The config for the model at find_model(`checkpoint`). `words`: options of the user, which take precedence. Throws
/// like find_model, and Error(bad_config) for weights whose model is neither recorded nor given by options.
/// training.seq_len is that of the run, or 2048 if none is recorded.
CheckpointJob load_checkpoint_job(const Schema& schema, const std::filesystem::path& checkpoint,
                                  std::span<const std::string> words);

/// The config of a training run. If the folder of model.from_hf no longer exists and the run has a checkpoint, uses the
/// model that the checkpoint recorded.
LoadedConfig load_run_job(const Schema& schema, std::span<const std::string> words,
                          std::span<const ConfigCheck> checks);

/// The job's tokenizer. Throws Error(bad_data) if there is none, or if it has only ids and `needs_text`.
std::shared_ptr<const Tokenizer> open_job_tokenizer(const LoadedConfig& job, bool needs_text = true);

/// The longest text in tokens, prompt included, that the model can generate or score.
int64_t longest_context(const LoadedConfig& job);

/// Sets the sequence length that the model is built for, so that a text of `tokens` fits. Throws Error(bad_data) if
/// that exceeds longest_context; `remedy` says what to do about it.
void set_context(LoadedConfig& job, int64_t tokens, const std::string& remedy);

/// Joins the other ranks, builds the model with its weights, lets `work` use it, and leaves. Standard output is for
/// results. Returns the exit code, or throws on rank 0, as RankSession::end does.
int run_inference(const Schema& schema, const JobConfig& config, const std::function<void(Run&)>& work);

}  // namespace titan
