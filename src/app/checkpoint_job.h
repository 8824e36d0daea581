// Jobs whose model a checkpoint knows: that of a command which computes and does not train (the form of the checkpoint
// is found out), and that of a run which resumes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "titan/config/load.h"
#include "titan/train/run.h"

namespace titan {

/// The newest checkpoint in the folder of a run or of its checkpoints; any other `folder` unchanged.
std::filesystem::path newest_checkpoint(const std::filesystem::path& folder);

/// `folder` if transformers can load it, else its newest_checkpoint. Throws Error(storage) for a folder that holds no
/// model.
std::filesystem::path find_model(const std::filesystem::path& folder);

/// The config for the model at find_model(`checkpoint`). `words`: options of the user, which win. Throws as find_model,
/// and Error(bad_config) for weights that no run of this program recorded and no option names.
/// training.seq_len is that of the run, or 2048 where none is recorded.
LoadedConfig load_checkpoint_job(const Schema& schema, const std::filesystem::path& checkpoint,
                                 std::span<const std::string> words);

/// The config of a run that trains. Where the folder of model.from_hf is gone and the run has a checkpoint, the model
/// is what that recorded.
LoadedConfig load_run_job(const Schema& schema, std::span<const std::string> words,
                          std::span<const ConfigCheck> checks);

/// More tokens than any model here reads, and few enough to count with.
constexpr int64_t kMostTokens = int64_t{1} << 31;

/// The job's tokenizer. Throws Error(bad_data) where there is none, or one of ids alone where it `needs_text`.
std::shared_ptr<const Tokenizer> open_job_tokenizer(const LoadedConfig& job, bool needs_text = true);

/// Tokens that the model may read together, as far as the job says.
int64_t longest_context(const LoadedConfig& job);

/// Sets what follows from the longest text, of `tokens`: the sequence length that the model is built for. Throws
/// Error(bad_config) where that is beyond the model's context.
void set_context(LoadedConfig& job, int64_t tokens);

/// Runs `work` on the ranks of this job, with the model. Returns the process's exit code.
int run_inference(const Schema& schema, const LoadedConfig& job, const std::function<void(Run& run)>& work);

}  // namespace titan
