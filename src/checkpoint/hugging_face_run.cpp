#include "titan/checkpoint/hugging_face_run.h"

#include <optional>

#include "folder_names.h"
#include "problem_of.h"
#include "titan/checkpoint/saver.h"

namespace titan {
namespace {

/// The first problem of any rank, with its number where there are several; the same on all.
std::string agreed(RankMeeting& meeting, const std::string& mine) {
  const std::vector<std::string> all = meeting.exchange(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return all.size() == 1 ? all[rank] : fmt::format("{} (rank {})", all[rank], rank);
  }
  return {};
}

void read_boxes(TensorSource& weights, const ForeignModel& model, std::span<const SavedParameter> parameters,
                int64_t rank) {
  std::map<std::string, const ForeignTensor*> by_name;
  for (const ForeignTensor& tensor : model.tensors) by_name[tensor.ours] = &tensor;
  for (const SavedParameter& parameter : parameters) {
    const std::optional<Box> box = parameter.box_of(rank);
    if (!box || box->numel() == 0) continue;
    const auto found = by_name.find(parameter.name);
    TITAN_CHECK(found != by_name.end() && found->second->shape == parameter.shape, parameter.name);
    read_parameter(weights, *found->second, *box, parameter.master);
  }
}

std::filesystem::path parts_root(const HuggingFaceExport& wanted) {
  return wanted.folder.parent_path() / fmt::format("{}{}-{}-parts", kSavingPrefix, wanted.step, wanted.run);
}

/// The parts, as a checkpoint of their own.
SaveOutcome save_parts(Storage& storage, RankMeeting& meeting, const HuggingFaceExport& wanted,
                       const CheckpointState& state) {
  SaveJob job;
  job.place = {parts_root(wanted), wanted.step, wanted.run};
  job.tensors = state.placed();
  job.plan = std::make_shared<const SavePlan>(plan_save(job.tensors, meeting.size()));
  job.facts = state.facts;
  const std::vector<PlannedWrite>& writes = job.plan->writes[static_cast<size_t>(meeting.rank())];
  job.written = [&](size_t index) { return written_part(state.tensors[writes[index].tensor], writes[index]); };
  return save_together(storage, meeting, job);
}

/// From the parts that all ranks have written.
SaveOutcome export_parts(Storage& storage, RankMeeting& meeting, const HuggingFaceExport& wanted) {
  std::optional<OpenCheckpoint> parts;
  const std::filesystem::path folder = parts_root(wanted) / step_folder(wanted.step);
  const auto open = [&] { parts.emplace(storage, folder, /*all_sizes=*/meeting.rank() == 0); };
  const std::string problem = agreed(meeting, problem_of(open));
  if (!problem.empty()) return {wanted.step, false, problem, wanted.folder, 0, 0};
  CheckpointSource weights(*parts);
  return export_together(storage, meeting, wanted, weights);
}

}  // namespace

HuggingFaceWeights read_hugging_face(Storage& storage, const std::filesystem::path& folder,
                                     std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                     std::span<const SavedParameter> parameters, int64_t rank) {
  SafetensorsFolder stored(storage, folder);
  std::optional<BlockScaledWeights> scaled;
  if (quantised) scaled.emplace(stored, *quantised);
  TensorSource& weights = scaled ? static_cast<TensorSource&>(*scaled) : stored;
  // One rank compares the second copies of tied weights.
  const Fit fit = rank == 0 ? check_fit(model, weights) : fit_of(model, weights);
  if (fit.complete()) read_boxes(weights, model, parameters, rank);
  const std::optional<Manifest>& manifest = stored.manifest();
  return {fit.counts(), stored.verified(), manifest ? std::optional(manifest->step) : std::nullopt};
}

LoadOutcome load_hugging_face_together(Storage& storage, RankMeeting& meeting, const std::filesystem::path& folder,
                                       std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                       std::span<const SavedParameter> parameters) {
  LoadOutcome outcome;
  const auto load = [&] {
    const HuggingFaceWeights read = read_hugging_face(storage, folder, quantised, model, parameters, meeting.rank());
    outcome.verified = read.verified;
    outcome.line = fmt::format("LOAD: {} from {} (Hugging Face, {}{})", read.counts, folder.string(),
                               quantised ? "quantised, " : "", outcome.verified ? "verified" : "unverified");
  };
  const std::string problem = agreed(meeting, problem_of(load));
  if (!problem.empty()) {
    throw Error(ExitCode::storage, fmt::format("{} cannot be loaded: {}", folder.string(), problem));
  }
  outcome.folder = folder;
  return outcome;
}

SaveOutcome save_hugging_face_together(Storage& storage, RankMeeting& meeting, const HuggingFaceExport& wanted,
                                       const CheckpointState& state) {
  SaveOutcome outcome = save_parts(storage, meeting, wanted, state);
  const double seconds = outcome.seconds;
  if (outcome.committed) outcome = export_parts(storage, meeting, wanted);
  outcome.folder = wanted.folder;
  outcome.seconds += seconds;
  if (meeting.rank() == 0) {
    problem_of([&] { storage.remove_folder(parts_root(wanted)); });  // what stays goes with the next start
  }
  return outcome;
}

}  // namespace titan
