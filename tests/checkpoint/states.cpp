#include "states.h"

#include "titan/plan/plan.h"

namespace titan {
namespace {

/// A parameter of the small model: its cut under tensor parallelism, and the stages it is on.
struct TestParameter {
  const char* name;
  std::vector<int64_t> shape;
  std::optional<int64_t> tensor_dimension;
  std::vector<int64_t> stages;  // 1: the last, however many there are

  std::vector<int64_t> stages_of(int64_t count) const {
    std::vector<int64_t> real;
    for (const int64_t stage : stages) real.push_back(stage * (count - 1));
    return real;
  }
};

const std::vector<TestParameter>& parameters() {
  static const std::vector<TestParameter> all{
      {"tok_embeddings.weight", {13, 8}, 0, {0, 1}},  // tied: the last stage computes with it, too
      {"layers.0.attention.wq.weight", {8, 8}, 0, {0}},
      {"layers.0.attention.wo.weight", {8, 8}, 1, {0}},
      {"layers.0.attention_norm.weight", {7}, std::nullopt, {0}},
      {"layers.1.feed_forward.w1.weight", {20, 8}, 0, {1}},
      {"layers.1.feed_forward.w2.weight", {8, 20}, 1, {1}},
      {"norm.weight", {3}, std::nullopt, {1}},  // fewer rows than some layouts have shards
  };
  return all;
}

DeviceMesh mesh_of(const TestLayout& layout) { return {layout.degrees, layout.ranks}; }

/// The plan's layout of each parameter.
std::vector<TensorLayout> tensor_layouts(const TestLayout& layout) {
  UnitDescription unit;
  unit.groups = {{}, {"feed_forward", layout.second_over}};
  for (const TestParameter& parameter : parameters()) {
    ParameterSpec spec{parameter.name, parameter.shape, {}};
    if (parameter.tensor_dimension) spec.splits = {{MeshAxis::tp, *parameter.tensor_dimension}};
    spec.group = spec.name.find("feed_forward") == std::string::npos ? 0 : 1;
    unit.parameters.push_back(std::move(spec));
  }
  ModelDescription model;
  model.units.push_back(std::move(unit));
  PlanRequest request;
  request.place = {mesh_of(layout), 0};
  std::vector<TensorLayout> layouts;
  for (const ParameterPlace& place : place_parameters(model, request)) layouts.push_back(place.layout);
  return layouts;
}

at::Tensor part(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
  }
  return whole;
}

}  // namespace

std::vector<TestLayout> test_layouts() {
  const auto layout = [](const char* name, int64_t ranks, int64_t pp, int64_t replicate, int64_t shard, int64_t cp,
                         int64_t tp) {
    return TestLayout{name, {pp, replicate, shard, cp, tp}, ranks};
  };
  return {layout("single", 1, 1, 1, 1, 1, 1),
          layout("ddp2", 2, 1, 2, 1, 1, 1),
          layout("fsdp2", 2, 1, 1, 2, 1, 1),
          layout("fsdp3", 3, 1, 1, 3, 1, 1),
          layout("fsdp4", 4, 1, 1, 4, 1, 1),
          layout("fsdp7", 7, 1, 1, 7, 1, 1),
          layout("hsdp2x2", 4, 1, 2, 2, 1, 1),
          layout("tp2", 2, 1, 1, 1, 1, 2),
          layout("tp4", 4, 1, 1, 1, 1, 4),
          layout("fsdp2xtp2", 4, 1, 1, 2, 1, 2),
          layout("fsdp3xtp2", 6, 1, 1, 3, 1, 2),
          layout("cp2xfsdp2", 4, 1, 1, 2, 2, 1),
          layout("pp2", 2, 2, 1, 1, 1, 1),
          layout("pp2xfsdp2", 4, 2, 1, 2, 1, 1),
          layout("pp2xddp2xtp2", 8, 2, 2, 1, 1, 2),
          layout("pp2xcp3", 6, 2, 1, 1, 3, 1),
          layout("pp3xtp2", 6, 3, 1, 1, 1, 2),  // nothing on the stage between
          TestLayout{"cp2xfsdp2_second_over_dp_shard", {1, 1, 2, 2, 1}, 4, {MeshAxis::dp_shard}},
          TestLayout{"cp2xfsdp3_second_over_cp", {1, 1, 3, 2, 1}, 6, {MeshAxis::cp}},
          TestLayout{"hsdp2x2xtp2_second_whole", {1, 2, 2, 1, 2}, 8, {}}};
}

std::vector<StateTensor> test_tensors(const TestLayout& layout) {
  const DeviceMesh mesh = mesh_of(layout);
  const int64_t stages = mesh.size(MeshAxis::pp);
  const std::vector<TensorLayout> layouts = tensor_layouts(layout);
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const TestParameter& parameter = parameters()[i];
    const BoxOfRank boxes =
        boxes_of(layouts[i], mesh, stages > 1 ? parameter.stages_of(stages) : std::vector<int64_t>{});
    const std::string name = parameter.name;
    tensors.push_back({{name, at::kBFloat16, parameter.shape}, boxes});
    tensors.push_back({{"optimizer.state." + name + ".exp_avg", at::kFloat, parameter.shape}, boxes});
    tensors.push_back({{"optimizer.state." + name + ".exp_avg_sq", at::kFloat, parameter.shape}, boxes});
  }
  tensors.push_back({{"train_state.step", at::kInt, {}}, whole_everywhere({})});
  return tensors;
}

at::Tensor whole_tensor(const LogicalTensor& tensor, int64_t version) {
  if (tensor.type == at::kInt) return at::scalar_tensor(version, at::kInt);
  int64_t seed = 7 * version;
  for (size_t i = 0; i < tensor.name.size(); ++i) seed += static_cast<int64_t>(i + 1) * tensor.name[i];
  const int64_t numel = Box{{}, tensor.shape}.numel();
  // Eighths between −15 5/8 and 15 5/8: exact in every dtype.
  const at::Tensor eighths = (at::arange(numel, at::kLong) * 31 + seed) % 251 - 125;
  return (eighths.to(at::kDouble) / 8).to(tensor.type).view(tensor.shape);
}

CheckpointState run_state(std::span<const SavedParameter> parameters, const SavedProgress& progress) {
  OptimizerSection optimizer;
  optimizer.name = OptimizerKind::adamw;
  optimizer.lr = 3e-4;
  optimizer.beta1 = 0.9;
  optimizer.beta2 = 0.95;
  optimizer.eps = 1e-8;
  optimizer.weight_decay = 0.1;
  optimizer.implementation = OptimizerImplementation::fused;
  return describe_run(parameters, optimizer, /*lr=*/1e-4, progress);
}

CheckpointerOptions test_options(SaveMode mode, std::function<void(const SaveOutcome&)> saved) {
  CheckpointerOptions options;
  options.root = "root";
  options.run = "run";
  options.mode = mode;
  options.most_files = 2;
  options.least_file_bytes = 0;
  options.saved = std::move(saved);
  return options;
}

std::vector<SavedValue> test_values(const TestLayout& layout, int64_t version) {
  const std::vector<std::pair<const char*, PickleRef>> values{
      {"dataloader.world_size", pickle::integer(layout.ranks)},
      {"dataloader.dp_rank_0", pickle::bytes(write_pickle(pickle::dictionary({{"chunk", pickle::integer(77)}})))},
      {"lr_scheduler.last_epoch", pickle::integer(version)},
      {"optimizer.param_groups.norm.weight.lr", pickle::real(3e-4)},
      {"optimizer.param_groups.norm.weight.betas", pickle::tuple({pickle::real(0.9), pickle::real(0.95)})},
      {"optimizer.param_groups.norm.weight.foreach", pickle::none()},
      {"optimizer.param_groups.norm.weight.fused", pickle::boolean(true)}};
  std::vector<SavedValue> saved;
  for (const auto& [name, value] : values) saved.push_back({name, value_blob(value)});
  return saved;
}

CheckpointState test_state(const TestLayout& layout, int64_t rank, int64_t version) {
  CheckpointState state;
  state.tensors = test_tensors(layout);
  for (StateTensor& one : state.tensors) {
    if (const std::optional<Box> box = one.box_of(rank)) one.local = part(whole_tensor(one.tensor, version), *box);
  }
  state.values = test_values(layout, version);
  state.facts = {{"version", version}};
  return state;
}

std::vector<LoadTarget> test_targets(const TestLayout& layout, int64_t rank) {
  std::vector<LoadTarget> targets;
  for (const StateTensor& one : test_tensors(layout)) {
    const std::optional<Box> box = one.box_of(rank);
    if (!box) continue;
    targets.push_back({one.tensor, *box, at::full(box->extent, -1, at::TensorOptions(one.tensor.type))});
  }
  return targets;
}

::testing::AssertionResult holds_version(const std::vector<LoadTarget>& targets, int64_t version) {
  for (const LoadTarget& target : targets) {
    const auto same = same_bits(target.into, part(whole_tensor(target.tensor, version), target.box));
    if (!same) return ::testing::AssertionFailure() << target.tensor.name << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

void save_as_all_ranks(Storage& storage, const SavePlace& place, const TestLayout& layout, int64_t version) {
  const std::vector<StateTensor> tensors = test_tensors(layout);
  const SavePlan plan = plan_save(tensors, layout.ranks, /*most_files=*/2);
  const std::vector<SavedValue> values = test_values(layout, version);
  const CheckpointIndex index = index_of(plan, tensors, values);
  begin_save(storage, place, 0);
  std::map<std::string, FileRecord> files;
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    const CheckpointState state = test_state(layout, rank, version);
    const std::vector<std::span<const PlannedWrite>> parts = files_of(plan[static_cast<size_t>(rank)]);
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto tensor_of = [&](size_t i) {
        const PlannedWrite& write = parts[part][i];
        const StateTensor& tensor = state.tensors[write.tensor];
        EXPECT_EQ(tensor.local.sizes(), at::IntArrayRef(write.box.extent)) << tensor.tensor.name;
        return tensor.local.contiguous();
      };
      const bool has_values = rank == 0 && part == 0;
      const auto number = static_cast<int64_t>(part);
      const auto record = write_data(storage, place, rank, has_values ? values : std::vector<SavedValue>(),
                                     parts[part].size(), tensor_of, number);
      if (record) files[data_file(rank, number)] = *record;
    }
  }
  commit_save(storage, place, index, std::move(files), {{"version", version}});
}

}  // namespace titan
