#include "titan/train/debug_dump.h"

#include <gtest/gtest.h>

#include <map>

#include "saved_jobs.h"
#include "support/job.h"
#include "support/safetensors_file.h"
#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Two parameters of one step, and two microbatches of two samples.
struct Fixture {
  Fixture() {
    for (const char* name : {"first.weight", "second.weight"}) {
      ParameterSpec spec{name, {2, 3}, {}};
      owned.push_back(std::make_unique<Parameter>(spec));
      owned.back()->master = normal({2, 3}, owned.size());
      parameters.push_back(owned.back().get());
    }
    for (uint64_t a = 0; a < 2; ++a) {
      BatchContext batch;
      batch.tokens = integers({2, 5}, 100, 10 + a);
      batch.labels = integers({2, 5}, 100, 20 + a);
      microbatches.push_back(batch);
    }
  }

  /// The file's tensors by name.
  std::map<std::string, at::Tensor> write(DebugDump& dump, int64_t step) {
    const std::filesystem::path path = dump.write(folder.path(), step);
    EXPECT_EQ(path, folder.path() / "debug" / ("step-" + std::to_string(step)) / "step.safetensors");
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : read_safetensors(path)) {
      EXPECT_TRUE(tensors.emplace(name, tensor).second) << name << " is there twice";
    }
    return tensors;
  }

  TestFolder folder;
  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> parameters;
  std::vector<BatchContext> microbatches;
};

std::vector<std::string> names_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(DebugDump, HoldsTheGlobalBatchAndEveryParameterBeforeAndAfterTheStep) {
  Fixture f;
  const at::Tensor before = f.parameters[0]->master.clone();
  DebugDump dump(f.parameters, f.microbatches);
  for (Parameter* parameter : f.parameters) parameter->gradient_shard = parameter->master * 2;
  const at::Tensor gradient = f.parameters[0]->gradient_shard.clone();
  dump.add_gradients(at::scalar_tensor(3.5, at::kDouble), at::scalar_tensor(1.25, at::kDouble));
  f.parameters[0]->gradient_shard.zero_();  // what clipping or the optimizer does to them later is not shown
  f.parameters[0]->master.add_(1);
  const std::map<std::string, at::Tensor> tensors = f.write(dump, 7);
  EXPECT_EQ(names_of(tensors),
            (std::vector<std::string>{"grad.first.weight", "grad.second.weight", "grad_norm", "labels", "loss",
                                      "param.first.weight", "param.second.weight", "param_after.first.weight",
                                      "param_after.second.weight", "tokens"}));
  EXPECT_TRUE(same_bits(tensors.at("tokens"), at::cat({f.microbatches[0].tokens, f.microbatches[1].tokens})));
  EXPECT_TRUE(same_bits(tensors.at("labels"), at::cat({f.microbatches[0].labels, f.microbatches[1].labels})));
  EXPECT_TRUE(same_bits(tensors.at("param.first.weight"), before));
  EXPECT_TRUE(same_bits(tensors.at("grad.first.weight"), gradient));
  EXPECT_TRUE(same_bits(tensors.at("param_after.first.weight"), f.parameters[0]->master));
  EXPECT_EQ(tensors.at("loss").item<double>(), 3.5);
  EXPECT_EQ(tensors.at("grad_norm").item<double>(), 1.25);
}

TEST(DebugDump, PositionsAreThereWhenTheModelIsToldThem) {
  Fixture f;
  for (BatchContext& batch : f.microbatches) batch.positions = integers({2, 5}, 5, 30);
  DebugDump dump(f.parameters, f.microbatches);
  const std::map<std::string, at::Tensor> tensors = f.write(dump, 1);
  EXPECT_EQ(tensors.at("positions").sizes(), at::IntArrayRef({4, 5}));
}

TEST(DebugDump, LogitsOfAllMicrobatchesAreInSampleOrder) {
  Fixture f;
  DebugDump dump(f.parameters, f.microbatches);
  const std::vector<at::Tensor> logits{normal({2, 5, 7}, 40), normal({2, 5, 7}, 41)};
  dump.add_logits(logits);
  EXPECT_TRUE(same_bits(f.write(dump, 1).at("logits"), at::cat(logits)));
}

TEST(DebugDump, LogitsOfAPipelineWithUnevenShardsOfTheVocabularyAreWhole) {
  const TestFolder whole, parts;
  const std::vector<std::string> dumped{"--model.override.vocab_size=2049", "--training.steps=1",
                                        "--debug.dump_steps=1", "--debug.dump_logits"};
  std::vector<std::string> layout = dumped;
  layout.insert(layout.end(), {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2"});
  test::run(whole, dumped);
  test::run_together(parts, 4, layout);
  std::map<std::string, at::Tensor> logits;
  for (const TestFolder* folder : {&whole, &parts}) {
    for (const auto& [name, tensor] : read_safetensors(*folder / "out/debug/step-1/step.safetensors")) {
      if (name == "logits") logits[folder == &whole ? "whole" : "parts"] = tensor;
    }
  }
  EXPECT_EQ(logits.at("parts").size(2), 2049);
  EXPECT_TRUE(at::allclose(logits.at("parts"), logits.at("whole"), 1e-4, 1e-4));
}

TEST(DebugDump, GradientsThatCameGroupByGroupAreNotRepeated) {
  Fixture f;
  DebugDump dump(f.parameters, f.microbatches);
  for (Parameter*& parameter : f.parameters) {
    parameter->gradient_shard = parameter->master.clone();
    dump.add_gradients_of(std::span(&parameter, 1));
    parameter->gradient_shard.reset();  // an optimizer that steps in backward lets them go
  }
  dump.add_gradients(at::scalar_tensor(3.5, at::kDouble), at::scalar_tensor(1.25, at::kDouble));
  const std::map<std::string, at::Tensor> tensors = f.write(dump, 1);
  EXPECT_TRUE(same_bits(tensors.at("grad.second.weight"), f.parameters[1]->master));
}

TEST(DebugDump, AFolderThatCannotBeMadeIsAStorageErrorThatNamesIt) {
  Fixture f;
  f.folder.write("debug", "in the way");
  DebugDump dump(f.parameters, f.microbatches);
  try {
    dump.write(f.folder.path(), 1);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_NE(std::string(error.what()).find((f.folder.path() / "debug").string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("debug.dump_steps"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
