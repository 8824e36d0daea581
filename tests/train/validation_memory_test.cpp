// Planned = counted: the most that a validation's batch holds on its way through one rank's part of the model. oneDNN's
// scratch memory, which depends on the processor, is counted apart and bounded by one product's.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "support/allocations.h"
#include "support/job.h"
#include "support/tensors.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/job/pipeline_job.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

constexpr int64_t kVocabulary = 160;

/// A rank of as many as the job's degrees ask for; the others are imaginary.
struct Rank {
  Rank(const std::vector<std::string>& words, int64_t world, int64_t rank) {
    std::vector<std::string> all{"--validation.enable",
                                 "--validation.local_batch_size=6",
                                 "--validation.seq_len=64",
                                 "--training.local_batch_size=2",
                                 "--training.seq_len=32",
                                 "--model.override.dim=64",
                                 "--model.override.n_heads=4",
                                 "--model.override.n_layers=4",
                                 fmt::format("--model.override.vocab_size={}", kVocabulary)};
    all.insert(all.end(), words.begin(), words.end());
    config = small_job(folder, all);
    const MeshPlace place{make_mesh(config, world), rank};
    const ModelFamily& family = *find_model_family(config.model.name);
    const ModelRequest request = make_model_request(config, 1);
    const ModelDescription model = describe_model(request);
    PlanRequest plan_request = make_plan_request(config, place);
    add_pipeline(plan_request, config, model);
    plan = make_plan(model, plan_request);
    ModelStrategies strategies;
    strategies.loss.chunks = config.training.loss_chunks;
    World self;
    self.rank = rank;
    self.size = world;
    self.fake = world > 1;
    communicators =
        make_mesh_communicators(place.mesh, rank, std::chrono::seconds(1), communicator_maker(self, at::kCPU));
    assembly = assemble(family, request, strategies, plan, communicators, at::kCPU, /*seed=*/11, {});
  }

  void validate() {
    const int64_t samples = config.validation.local_batch_size;
    const int64_t length = config.validation.seq_len / plan.request.split().ranks;
    BatchContext batch;
    batch.tokens = integers({samples, length}, kVocabulary, 5);
    batch.labels = integers({samples, length}, kVocabulary, 6);
    assembly.executor->infer(batch, UnitMode::evaluate);
  }

  int64_t largest_product_scratch() const {
    const int64_t tokens = config.validation.local_batch_size * config.validation.seq_len;
    int64_t most = 0;
    for (const WeightGroupPlan& group : plan.groups) {
      for (const ParameterPlan& parameter : group.parameters) {
        const auto& shape = parameter.spec.shape;
        if (shape.size() == 2) most = std::max(most, product_scratch(tokens, shape[1], shape[0]));
      }
    }
    return most;
  }

  TestFolder folder;
  JobConfig config;
  Plan plan;
  MeshCommunicators communicators;
  Assembly assembly;
};

struct Layout {
  std::string name;
  int64_t world = 1;
  std::vector<std::string> words = {};
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class ValidationMemory : public ::testing::TestWithParam<Layout> {};

TEST_P(ValidationMemory, OfAForwardIsCountedAsPlannedOnEveryRank) {
  at::set_num_threads(1);
  for (int64_t r = 0; r < GetParam().world; ++r) {
    for (const char* compute : {"float32", "bfloat16"}) {
      SCOPED_TRACE(fmt::format("rank {}, {}", r, compute));
      std::vector<std::string> words = GetParam().words;
      words.push_back(std::string("--training.mixed_precision_param=") + compute);
      Rank rank(words, GetParam().world, r);
      rank.validate();  // copies to compute with are made, once
      const MemoryPurpose& forward = rank.plan.validation_memory.back();
      ASSERT_EQ(forward.name, "validation's forward");
      const auto planned = static_cast<double>(forward.bytes);
      const PeakBytes peak = peak_allocation([&] { rank.validate(); });
      EXPECT_NEAR(static_cast<double>(peak.tensors), planned, 0.02 * planned);
      EXPECT_LE(peak.scratch, rank.largest_product_scratch());
    }
  }
}

const std::string kTensor = "--parallelism.tensor_parallel_degree=2";
const std::string kContext = "--parallelism.context_parallel_degree=2";
const std::string kPipeline = "--parallelism.pipeline_parallel_degree=2";

INSTANTIATE_TEST_SUITE_P(
    Layouts, ValidationMemory,
    ::testing::Values(
        Layout{"alone"}, Layout{"as_many_heads_of_keys", 1, {"--model.override.n_kv_heads=4"}},
        Layout{"layer_norms", 1, {"--model.norm_type=layernorm"}},
        Layout{"logits_at_once", 1, {"--training.loss_chunks=1", "--model.override.vocab_size=900"}},
        Layout{"everything_offloaded", 1, {"--training.enable_cpu_offload"}},
        Layout{"recomputed", 1, {"--activation_checkpoint.mode=full"}}, Layout{"fsdp", 2},
        Layout{"tensor", 2, {kTensor}},
        Layout{"tensor_with_whole_logits",
               2,
               {kTensor, "--parallelism.disable_loss_parallel", "--training.loss_chunks=1"}},
        Layout{"context", 2, {kContext}},
        Layout{"context_handed_on", 2, {kContext, "--parallelism.context_parallel_rotate_method=alltoall"}},
        Layout{"pipeline", 2, {kPipeline}},
        Layout{"pipeline_of_loops", 2, {kPipeline, "--parallelism.pipeline_parallel_schedule=Interleaved1F1B"}},
        Layout{"tensor_and_pipeline", 4, {kTensor, kPipeline}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace titan
