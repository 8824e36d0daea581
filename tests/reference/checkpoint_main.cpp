// Writes and reads checkpoints for tests/reference/checkpoint_test.py, which gives them to Python and takes Python's.
//   checkpoint_files layouts                   the names of the layouts, one a line
//   checkpoint_files write ROOT LAYOUT VERSION ROOT/step-VERSION, as all ranks of the layout
//   checkpoint_files run ROOT                  ROOT/step-7, all that a run of one process remembers
//   checkpoint_files restore FOLDER            reads a run as titan resumes it; says what it found as JSON
//   checkpoint_files read FOLDER TENSORS       every tensor whole, as a safetensors file; the values as JSON on stdout
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/states.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/training_state.h"

namespace titan {
namespace {

nlohmann::json json_of(const PickleValue& value) {
  using Kind = PickleValue::Kind;
  switch (value.kind) {
    case Kind::none:
      return nullptr;
    case Kind::boolean:
      return value.integer != 0;
    case Kind::integer:
      return value.integer;
    case Kind::real:
      return value.real;
    case Kind::text:
      return value.text;
    case Kind::bytes:  // a pickle inside a pickle: how data positions are saved
      return {{"pickled", json_of(*read_pickle(value.text))}};
    case Kind::dictionary: {
      nlohmann::json json = nlohmann::json::object();
      for (size_t i = 0; i < value.items.size(); i += 2) json[value.items[i]->text] = json_of(*value.items[i + 1]);
      return json;
    }
    default: {
      nlohmann::json json = nlohmann::json::array();
      for (const PickleRef& item : value.items) json.push_back(json_of(*item));
      return json;
    }
  }
}

int write(const std::string& root, const std::string& name, int64_t version) {
  const auto storage = make_posix_storage();
  for (const TestLayout& layout : test_layouts()) {
    if (layout.name != name) continue;
    save_as_all_ranks(*storage, {root, version, "reference"}, layout, version);
    return 0;
  }
  throw Error(ExitCode::bad_config, "no such layout: " + name);
}

int read(const std::string& folder, const std::string& file) {
  const auto storage = make_posix_storage();
  OpenCheckpoint checkpoint(*storage, folder, true);
  std::vector<LoadTarget> targets;
  NamedTensors tensors;
  for (const auto& [name, stored] : checkpoint.index().tensors) {
    const LogicalTensor& tensor = stored.tensor;
    const at::Tensor into = at::zeros(tensor.shape, at::TensorOptions(tensor.type));
    targets.push_back({tensor, {std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape}, into});
    tensors.emplace_back(name, into.is_complex() ? at::view_as_real(into) : into);
  }
  checkpoint.load(targets);
  checkpoint.check_all();
  write_safetensors(file, tensors);
  nlohmann::json values = nlohmann::json::object();
  for (const auto& [name, place] : checkpoint.index().values) values[name] = json_of(*checkpoint.value(name));
  fmt::print("{}\n", nlohmann::json{{"verified", checkpoint.verified()}, {"values", values}}.dump());
  return 0;
}

/// A model of two weights in the middle of a run; `fresh`: as it is before a checkpoint is loaded.
std::vector<SavedParameter> small_run(bool fresh) {
  std::vector<SavedParameter> parameters;
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, std::vector<int64_t>>>{{"layers.0.weight", {4, 3}}, {"norm.weight", {4}}}) {
    const auto tensor = [&](const std::string& of) {
      return fresh ? at::zeros(shape) : whole_tensor({of, at::kFloat, shape}, 7);
    };
    parameters.push_back({name,
                          shape,
                          whole_everywhere(shape),
                          tensor(name),
                          {{"exp_avg", tensor("optimizer.state." + name + ".exp_avg")},
                           {"exp_avg_sq", tensor("optimizer.state." + name + ".exp_avg_sq")}}});
  }
  return parameters;
}

int save_run(const std::string& root) {
  const auto storage = make_posix_storage();
  const auto barrier = make_lone_barrier();
  CheckpointerOptions options = test_options(SaveMode::synchronous, [](const SaveOutcome& outcome) {
    if (!outcome.committed) throw Error(ExitCode::storage, outcome.problem);
  });
  options.root = root;
  options.most_files = 1;
  Checkpointer(*storage, *barrier, options)
      .save(7, run_state(small_run(/*fresh=*/false), {7, 700, {{"chunk", 56}}, 2}));
  return 0;
}

int restore(const std::string& folder) {
  const auto storage = make_posix_storage();
  OpenCheckpoint checkpoint(*storage, folder, true);
  const std::vector<SavedParameter> parameters = small_run(/*fresh=*/true);
  std::vector<std::string> notes;
  const std::optional<SavedProgress> progress = restore_run(checkpoint, parameters, 0, notes);
  nlohmann::json said{{"notes", notes}};
  if (progress) said.update({{"step", progress->step}, {"tokens", progress->tokens.value_or(0)}});
  for (const SavedParameter& parameter : parameters) {
    for (const auto& [what, tensor] :
         {std::pair("master", parameter.master), std::pair("exp_avg", parameter.moments[0].second),
          std::pair("exp_avg_sq", parameter.moments[1].second)}) {
      const at::Tensor flat = tensor.flatten();
      const float* values = flat.const_data_ptr<float>();
      said[parameter.name][what] = std::vector<float>(values, values + flat.numel());
    }
  }
  fmt::print("{}\n", said.dump());
  return 0;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "layouts") {
    for (const TestLayout& layout : test_layouts()) fmt::print("{}\n", layout.name);
    return 0;
  }
  if (words.size() == 4 && words[0] == "write") return write(words[1], words[2], std::stoll(words[3]));
  if (words.size() == 3 && words[0] == "read") return read(words[1], words[2]);
  if (words.size() == 2 && words[0] == "run") return save_run(words[1]);
  if (words.size() == 2 && words[0] == "restore") return restore(words[1]);
  throw Error(ExitCode::bad_config, "see the comment at the top of checkpoint_main.cpp");
}

}  // namespace
}  // namespace titan

int main(int count, char** words) {
  try {
    return titan::run({words + 1, words + count});
  } catch (const titan::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
