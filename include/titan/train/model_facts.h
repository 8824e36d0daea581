// What weights do not show of their model, remembered with them in checkpoints of ours and held against the model that
// loads them: two models may have the same names and shapes and compute different things.
#pragma once

#include <optional>
#include <string>

#include "titan/checkpoint/read_checkpoint.h"
#include "titan/model/exchange.h"
#include "titan/model/model.h"

namespace titan {

/// Member of a manifest's facts: {"flavor": "llama3 8B", "n_heads": "32", …, "request": {"name": "llama3", …}}.
inline constexpr const char* kModelFacts = "model";
nlohmann::ordered_json model_facts(const ModelRequest& model);
/// The model that such facts were made of, with a vocabulary of one word where that follows the tokenizer; nothing when
/// they do not say it.
std::optional<ModelRequest> recorded_model(const std::optional<Manifest>& manifest);

/// Who takes the weights: the run that saved them, which is to go on as it was; one that begins from them and may mean
/// to change what is changed on purpose; another program.
enum class WeightUse { resume, begin, convert };

/// Throws MismatchError with what differs, of what the checkpoint remembers; what may be meant is one sentence for a
/// warning instead, and so is what to know of weights that remember nothing: older and Python's ones. Empty when
/// nothing differs.
std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use);

}  // namespace titan
