// titan_train convert verify: what a folder of weights contains, and whether it is complete.
#include <algorithm>
#include <ostream>
#include <set>

#include "convert_model.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/training_state.h"
#include "titan/train/hugging_face.h"

namespace titan {
namespace {

std::string types_of(const TensorSource& weights) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) names.emplace(python_name(tensor.type));
  return join(std::vector<std::string>(names.begin(), names.end()), ", ");
}

int64_t numbers_in(const TensorSource& weights) {
  int64_t numbers = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    numbers += Box{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}.numel();
  }
  return numbers;
}

std::string described(const TensorSource& weights) {
  return fmt::format("{} tensors of {}, {} numbers", weights.tensors().size(), types_of(weights),
                     human_count(static_cast<double>(numbers_in(weights))));
}

/// Throws MismatchError unless every tensor belongs to the model; prints the counts.
void compare(const ForeignModel& model, TensorSource& weights, const ModelRequest& request, std::ostream& out) {
  out << fmt::format("names   {}: {}\n", shown(request), check_fit(model, weights).counts());
}

/// What the entries beside the weights are for, after a colon; empty if they are of no run. Throws what a run would
/// that resumes from them.
std::string use_of(OpenCheckpoint& checkpoint, const TensorSource& weights) {
  if (!holds_run(checkpoint.index())) return {};
  read_progress(checkpoint);
  if (!holds_moments(checkpoint.index())) return ": the progress of a run, without its optimizer's moments";
  for (const auto& [name, tensor] : weights.tensors()) {
    if (tensor.type == at::kFloat || tensor.type == at::kBFloat16) continue;  // training.dtype
    return fmt::format(": a run's, but none resumes with {} in {}", name, python_name(tensor.type));
  }
  return ": a run can resume from it";
}

void verify_checkpoint(const WeightConversion& conversion, std::ostream& out) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  OpenCheckpoint checkpoint = open_checkpoint(*storage, conversion.from);
  checkpoint.check_entries();
  checkpoint.check_all();
  CheckpointSource weights(checkpoint);
  const std::string use = use_of(checkpoint, weights);
  const int64_t others = static_cast<int64_t>(checkpoint.index().tensors.size() + checkpoint.index().values.size()) -
                         static_cast<int64_t>(weights.tensors().size());
  out << fmt::format("kind    checkpoint{}\n", checkpoint.manifest()
                                                   ? fmt::format(" of step {}", checkpoint.manifest()->step)
                                                   : ", written by torch.distributed.checkpoint");
  out << fmt::format("bytes   {}\n", checkpoint.verified() ? "verified: every byte has the hash it was saved with"
                                                           : "unverified: no hashes were saved; tensors fit the index");
  out << fmt::format("model   {}\n", described(weights));
  out << fmt::format("beside  {} other entries{}\n", others, use);
  if (!conversion.names_model && !recorded_model(checkpoint.manifest())) return;
  const ModelRequest request = model_of(conversion, checkpoint.manifest(), weights);
  check_model_facts(checkpoint, request, WeightUse::convert);
  compare(own_form(parameters_of(request)), weights, request, out);
}

void verify_hugging_face(const WeightConversion& conversion, std::ostream& out) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  SafetensorsFolder weights = open_safetensors(*storage, conversion.from);
  weights.check_all();
  out << fmt::format("kind    Hugging Face, {} safetensors files\n", weights.files().size());
  out << fmt::format("bytes   {}\n", weights.verified() ? "verified: every byte has the hash it was saved with"
                                                        : "unverified: no hashes were saved; headers fit the files");
  out << fmt::format("model   {}\n", described(weights));
  const ForeignSettings settings = read_settings(conversion.from, ForeignSettings::Format::hugging_face);
  const ModelRequest request = model_of(conversion, weights.manifest(), settings);
  std::optional<BlockScaledWeights> scaled;
  if (!weights.note().empty()) out << fmt::format("note    {}\n", weights.note());
  TensorSource& numbers = as_numbers(weights, settings, scaled);
  compare(named_as_in(adapter_of(request).hugging_face(request), numbers), numbers, request, out);
}

bool holds(const std::filesystem::path& folder, const char* file) {
  std::error_code unknown;
  return std::filesystem::exists(folder / file, unknown);
}

}  // namespace

void verify_weights(const WeightConversion& conversion, std::ostream& out) {
  const std::filesystem::path& folder = conversion.from;
  expect_folder(folder);
  const bool has_their_weights = holds(folder, kSafetensorsFile) || holds(folder, kSafetensorsIndex);
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const bool is_of_a_run = !has_their_weights && !newest_inside(*storage, folder).empty();
  if (holds_checkpoint(*storage, folder) || is_of_a_run) return verify_checkpoint(conversion, out);
  verify_hugging_face(conversion, out);
}

}  // namespace titan
