#include "titan/tools/convert.h"

#include <ostream>

#include "convert_model.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/train/hugging_face.h"
#include "titan/train/state_dict.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// Name of the temporary folder; constant, so that the next conversion removes what a killed one left.
constexpr const char* kRun = "convert";

/// A file inside a checkpoint would be deleted with it.
void refuse_inside_checkpoint(Storage& storage, const fs::path& target) {
  std::error_code unknown;
  for (fs::path folder = fs::weakly_canonical(fs::absolute(target, unknown), unknown).parent_path();
       folder.has_relative_path(); folder = folder.parent_path()) {
    if (!holds_checkpoint(storage, folder)) continue;
    throw Error(ExitCode::storage,
                fmt::format("{} would lie inside {}, a checkpoint, and be deleted with it; name a target outside of it",
                            target.string(), folder.string()));
  }
}

/// The target without a trailing slash; it must not exist yet.
fs::path free_target(const fs::path& to) {
  const fs::path target = to.has_filename() ? to : to.parent_path();
  std::error_code unknown;
  if (fs::exists(fs::symlink_status(target, unknown))) {
    throw Error(ExitCode::storage, fmt::format("{} is there already; name one that is not", target.string()));
  }
  refuse_inside_checkpoint(*make_posix_storage(), target);
  return target;
}

std::string named(const Fit& fit) {
  return fmt::format("{}; {} parameters", fit.counts(), human_count(static_cast<double>(fit.parameters)));
}

/// The tokenizer that the user named, or that of the imported folder; empty if neither exists.
std::string tokenizer_of(const WeightConversion& conversion) {
  const fs::path place = conversion.names_tokenizer ? fs::path(tokenizer_location(conversion.config)) : conversion.from;
  std::error_code unknown;
  return tokenizer_at(place) ? fs::absolute(place, unknown).lexically_normal().string() : "";
}

/// Both imports: check everything, then write.
void import_all(const WeightConversion& conversion, TensorSource& theirs, const ForeignModel& model,
                const ModelRequest& request, const fs::path& target, const char* source, std::ostream& out) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  const Fit fit = check_fit(model, theirs);
  out << fmt::format("{} holds {}: {}", conversion.from.string(), shown(request), named(fit)) << std::endl;
  const at::ScalarType type = scalar_type_named(std::string(name(conversion.config.training.dtype)));
  nlohmann::ordered_json facts{{"tokens", 0}, {"converted_from", source}, {kModelFacts, model_facts(request)}};
  if (const std::string tokenizer = tokenizer_of(conversion); !tokenizer.empty()) facts[kTokenizerFact] = tokenizer;
  import_weights(*storage, theirs, model, type, target, std::move(facts));
  out << fmt::format("{} written in {} and read back; a run begins from it with checkpoint.initial_load_path\n",
                     target.string(), name(conversion.config.training.dtype));
}

/// Checks the model's parameters and facts against a checkpoint.
Fit check_checkpoint(const WeightConversion& conversion, const ModelRequest& request, const OpenCheckpoint& checkpoint,
                     TensorSource& weights) {
  const std::string named = conversion.names_model ? shown(request) + " was named; name another" : "name its model";
  return with_remedy(named + " with a config file, or with --model.name and --model.flavor", [&] {
    check_model_facts(checkpoint, request, WeightUse::convert);
    return check_fit(own_form(parameters_of(request)), weights);
  });
}

}  // namespace

void convert_from_hugging_face(const WeightConversion& conversion, std::ostream& out) {
  const fs::path target = free_target(conversion.to);
  const ForeignSettings settings = read_settings(conversion.from, ForeignSettings::Format::hugging_face);
  const std::unique_ptr<Storage> storage = make_posix_storage();
  SafetensorsFolder stored = open_safetensors(*storage, conversion.from);
  const ModelRequest request = model_of(conversion, stored.manifest(), settings);
  std::optional<BlockScaledWeights> scaled;
  TensorSource& theirs = as_numbers(stored, settings, scaled);
  if (!stored.note().empty()) out << stored.note() << '\n';
  const ForeignModel model = named_as_in(adapter_of(request).hugging_face(request), theirs);
  import_all(conversion, theirs, model, request, target, "Hugging Face", out);
}

void convert_from_meta(const WeightConversion& conversion, std::ostream& out) {
  const fs::path target = free_target(conversion.to);
  const ForeignSettings settings = read_settings(conversion.from, ForeignSettings::Format::meta);
  const ModelRequest request = model_of(conversion, std::nullopt, settings);
  const ForeignModel model = adapter_of(request).meta(request);
  const std::unique_ptr<Storage> storage = make_posix_storage();
  MetaWeights theirs(*storage, conversion.from, model);
  import_all(conversion, theirs, model, request, target, "Meta", out);
}

namespace {

/// A checkpoint with a known model, which is printed before anything is written.
struct HeldModel {
  HeldModel(const WeightConversion& conversion, std::ostream& out)
      : checkpoint(open_checkpoint(*storage, conversion.from)),
        weights(checkpoint),
        request(model_of(conversion, checkpoint.manifest(), weights)) {
    const Fit fit = check_checkpoint(conversion, request, checkpoint, weights);
    out << fmt::format("{} holds {}: {}", conversion.from.string(), shown(request), named(fit)) << std::endl;
  }

  std::unique_ptr<Storage> storage = make_posix_storage();
  OpenCheckpoint checkpoint;
  CheckpointSource weights;
  ModelRequest request;
};

}  // namespace

void convert_to_hugging_face(const WeightConversion& conversion, std::ostream& out) {
  HuggingFaceExport wanted;
  wanted.folder = free_target(conversion.to);
  wanted.run = kRun;
  if (conversion.shard_bytes > 0) wanted.most_bytes = conversion.shard_bytes;
  if (!conversion.dtype.empty()) wanted.type = scalar_type_named(conversion.dtype);
  HeldModel held(conversion, out);
  wanted.model = adapter_of(held.request).hugging_face(held.request);
  const at::ScalarType stored = held.weights.tensors().begin()->second.type;
  std::vector<std::string> notes;
  JobConfig config = conversion.config;
  const std::optional<Manifest>& manifest = held.checkpoint.manifest();
  if (manifest) wanted.step = manifest->step;
  if (manifest && !conversion.names_tokenizer) take_recorded_tokenizer(manifest->facts, config);
  wanted.companions = make_companions(config, held.request, wanted.type.value_or(stored), notes);
  wanted.facts[kModelFacts] = model_facts(held.request);
  for (const std::string& note : notes) out << note << '\n';
  const SaveOutcome outcome = export_together(*held.storage, *make_lone_barrier(), wanted, held.weights);
  if (!outcome.committed) throw Error(ExitCode::storage, outcome.problem);
  out << fmt::format("{} written in {} and read back: {}\n", wanted.folder.string(),
                     python_name(wanted.type.value_or(stored)), human_bytes(static_cast<double>(outcome.bytes)));
}

namespace {

void write_form(const WeightConversion& conversion, HeldModel& held, TorchtitanRelease release,
                const std::map<std::string, at::Tensor>& tables, const fs::path& target) {
  const TorchtitanForm form{release, conversion.data_ranks, conversion.config.optimizer.name != OptimizerKind::adam};
  try {
    write_for_torchtitan(*held.storage, held.checkpoint, form, tables, target);
  } catch (const StorageError&) {
    throw;  // its message names the file already
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", conversion.from.string(), error.what()));
  }
}

}  // namespace

void convert_to_2024(const WeightConversion& conversion, std::ostream& out) {
  const fs::path target = free_target(conversion.to);
  HeldModel held(conversion, out);
  write_form(conversion, held, TorchtitanRelease::december_2024, adapter_of(held.request).tables_of_2024(held.request),
             target);
  out << fmt::format("{} written and read back; its rotary table has training.seq_len = {} rows\n", target.string(),
                     held.request.sequence_length);
}

void convert_to_2026(const WeightConversion& conversion, std::ostream& out) {
  const fs::path target = free_target(conversion.to);
  HeldModel held(conversion, out);
  write_form(conversion, held, TorchtitanRelease::february_2026, {}, target);
  out << fmt::format("{} written and read back\n", target.string());
}

}  // namespace titan
