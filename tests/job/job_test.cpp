#include "titan/job/job.h"

#include <gtest/gtest.h>

#include "support/config_problems.h"

namespace titan {
namespace {

TEST(Float8OfAJob, IsWhatTheConverterAndItsOptionsSay) {
  EXPECT_FALSE(make_plan_request(job_config({"--quantize.linear.float8.emulate"})).float8);
  const std::string converter = "--model.converters=quantize.linear.float8";
  const std::string prefix = "--quantize.linear.float8.";
  const LinearFloat8Section plain = *make_plan_request(job_config({converter})).float8;
  EXPECT_EQ(recipe_of(plain), Float8Recipe::tensorwise);
  EXPECT_FALSE(plain.emulate || plain.enable_fsdp_float8_all_gather || plain.force_recompute_fp8_weight_in_bwd ||
               plain.precompute_float8_dynamic_scale_for_fsdp || !plain.filter_fqns.empty());
  const LinearFloat8Section request =
      *make_plan_request(job_config({converter, prefix + "emulate", prefix + "enable_fsdp_float8_all_gather",
                                     prefix + "precompute_float8_dynamic_scale_for_fsdp",
                                     prefix + "force_recompute_fp8_weight_in_bwd",
                                     prefix + "filter_fqns=wk,auto_filter_small_kn,output"}))
           .float8;
  EXPECT_TRUE(request.emulate && request.enable_fsdp_float8_all_gather && request.force_recompute_fp8_weight_in_bwd);
  EXPECT_TRUE(request.precompute_float8_dynamic_scale_for_fsdp);
  EXPECT_EQ(request.filter_fqns, (std::vector<std::string>{"wk", "auto_filter_small_kn", "output"}));
  EXPECT_EQ(name_filters(request), (std::vector<std::string>{"wk", "output"}));
  EXPECT_EQ(recipe_of(*float8_options(job_config({converter, prefix + "recipe_name=rowwise_with_gw_hp"}))),
            Float8Recipe::rowwise_with_gw_hp);
}

TEST(CheckModel, AFloat8FilterNamesALayerUnlessFloat8IsOff) {
  const std::string filters = "--quantize.linear.float8.filter_fqns=";
  EXPECT_EQ(
      config_problems({"--model.converters=quantize.linear.float8", filters + "auto_filter_small_kn,layers.3,output"}),
      "");
  EXPECT_EQ(config_problems({filters + "attention.wz"}), "");
}

TEST(AccumulationSteps, AreTheMicrobatchesThatMakeTheGlobalBatch) {
  const std::string local = "--training.local_batch_size=4";
  EXPECT_EQ(accumulation_steps(job_config({local})), 1);
  EXPECT_EQ(accumulation_steps(job_config({local, "--training.global_batch_size=4"})), 1);
  EXPECT_EQ(accumulation_steps(job_config({local, "--training.global_batch_size=20"})), 5);
}

TEST(PlanRequestOfAJob, CarriesSizesTypesAndPolicies) {
  const PlanRequest request = make_plan_request(
      job_config({"--training.local_batch_size=3", "--training.global_batch_size=6", "--training.seq_len=48",
                  "--training.mixed_precision_param=bfloat16", "--training.loss_chunks=5",
                  "--optimizer.early_step_in_backward", "--activation_checkpoint.mode=full"}));
  EXPECT_EQ(request.samples, 3);
  EXPECT_EQ(request.accumulation, 2);
  EXPECT_EQ(request.sequence_length, 48);
  EXPECT_EQ(request.training.dtype, ElementType::float32);
  EXPECT_EQ(request.training.mixed_precision_param, ElementType::bfloat16);
  EXPECT_EQ(request.training.loss_chunks, 5);
  EXPECT_TRUE(request.optimizer.early_step_in_backward);
  EXPECT_EQ(request.recompute.mode, RecomputeSelection::Mode::full);
}

TEST(PlanRequestOfAJob, CarriesTheChoicesOfSeveralRanks) {
  const MeshPlace place{DeviceMesh({.dp_shard = 2, .tp = 2}, 4), 3};
  const PlanRequest plain = make_plan_request(job_config({}), place);
  EXPECT_EQ(plain.place.rank, 3);
  EXPECT_EQ(plain.shards(), 2);
  EXPECT_EQ(plain.parallelism.fsdp_reshard_after_forward, ReshardPolicy::standard);
  EXPECT_FALSE(plain.async_tensor_parallel());
  EXPECT_FALSE(plain.training.enable_cpu_offload);
  EXPECT_FALSE(plain.parallelism.disable_loss_parallel);
  const JobConfig chosen =
      job_config({"--parallelism.fsdp_reshard_after_forward=never", "--parallelism.disable_loss_parallel",
                  "--parallelism.enable_async_tensor_parallel", "--parallelism.tensor_parallel_degree=2",
                  "--training.enable_cpu_offload", "--training.keep_fp32=head,layers.0"});
  const PlanRequest request = make_plan_request(chosen, place);
  EXPECT_EQ(request.parallelism.fsdp_reshard_after_forward, ReshardPolicy::never);
  EXPECT_TRUE(request.parallelism.disable_loss_parallel);
  EXPECT_TRUE(request.async_tensor_parallel());
  EXPECT_FALSE(make_plan_request(chosen, {}).async_tensor_parallel()) << "one tensor-parallel rank";
  EXPECT_TRUE(request.training.enable_cpu_offload);
  EXPECT_EQ(request.training.keep_fp32, (std::vector<std::string>{"head", "layers.0"}));
  EXPECT_EQ(make_plan_request(job_config({"--parallelism.fsdp_reshard_after_forward=always"}), place)
                .parallelism.fsdp_reshard_after_forward,
            ReshardPolicy::always);
}

TEST(PlanRequestOfAJob, SaysWhatGradientsTravelInAndWhichUnitsStayWide) {
  EXPECT_EQ(make_plan_request(job_config({})).training.mixed_precision_reduce, ElementType::float32);
  const PlanRequest request = make_plan_request(
      job_config({"--training.mixed_precision_reduce=bfloat16", "--training.keep_fp32=head,layers.0"}));
  EXPECT_EQ(request.training.mixed_precision_reduce, ElementType::bfloat16);
  EXPECT_EQ(request.training.keep_fp32, (std::vector<std::string>{"head", "layers.0"}));
}

TEST(PlanRequestOfAJob, SaysHowSequencesAreSharedAndWhoHoldsWhat) {
  const MeshPlace place{DeviceMesh({1, 1, 2, 4, 2}, 16), 5};  // dp_shard 0, cp 2, tp 1
  const std::string degree = "--parallelism.context_parallel_degree=4";
  const PlanRequest usual = make_plan_request(job_config({degree}), place);
  EXPECT_EQ(usual.parallelism.context_parallel_rotate_method, Rotation::all_gather);
  EXPECT_EQ(usual.parallelism.context_parallel_load_balancer, LoadBalance::head_tail);
  EXPECT_EQ(usual.local_length(), usual.sequence_length / 4);
  EXPECT_EQ(usual.tokens(), usual.samples * usual.sequence_length / 4);
  EXPECT_EQ(usual.shards(), 8) << "weights are cut over the ranks of a sequence too";
  const JobConfig ring = job_config({degree, "--parallelism.context_parallel_rotate_method=alltoall",
                                     "--parallelism.context_parallel_load_balancer=none"});
  EXPECT_EQ(make_plan_request(ring, place).parallelism.context_parallel_rotate_method, Rotation::all_to_all);
  EXPECT_EQ(make_plan_request(ring, place).parallelism.context_parallel_load_balancer, LoadBalance::none);
  EXPECT_EQ(make_sequence_share(ring, place).rank, 2);
  EXPECT_EQ(make_sequence_share(ring, place).split.ranks, 4);
  EXPECT_EQ(make_batch_plan(ring, place).dp_degree, 2) << "ranks of a sequence read the same samples";
}

TEST(RecomputeSelectionOfAJob, FollowsModeAndOption) {
  auto selection = [](const std::string& mode, const std::string& option) {
    return make_recompute_selection(
        job_config({"--activation_checkpoint.mode=" + mode, "--activation_checkpoint.selective_ac_option=" + option}));
  };
  using Mode = RecomputeSelection::Mode;
  EXPECT_EQ(selection("none", "2").mode, Mode::none);
  EXPECT_EQ(selection("selective", "op").mode, Mode::selective_operations);
  const RecomputeSelection third = selection("selective", "3");
  EXPECT_EQ(third.mode, Mode::selective_layers);
  EXPECT_EQ(third.every, 3);
  const RecomputeSelection parts = selection("selective", "norm,swiglu");
  EXPECT_EQ(parts.mode, Mode::selective_parts);
  EXPECT_EQ(parts.parts, (std::vector<std::string>{"norm", "swiglu"}));
}

TEST(DatasetsOfAJob, TrainingAndValidationHaveTheirOwnPath) {
  const JobConfig config =
      job_config({"--training.dataset=text", "--training.dataset_path=a.txt", "--validation.enable",
                  "--validation.dataset=c4_validation", "--validation.dataset_path=b.jsonl", "--data.bad_record=skip",
                  "--data.text_field=body"});
  const DatasetOptions training = make_training_dataset(config), validation = make_validation_dataset(config);
  EXPECT_EQ(training.dataset, "text");
  EXPECT_EQ(training.path, "a.txt");
  EXPECT_EQ(training.text_field, "body");
  EXPECT_EQ(training.bad_record, BadRecord::skip);
  EXPECT_EQ(validation.dataset, "c4_validation");
  EXPECT_EQ(validation.path, "b.jsonl");
}

TEST(BatchPlansOfAJob, ValidationHasItsOwnSizesAndNeverAccumulates) {
  const JobConfig config =
      job_config({"--training.local_batch_size=2", "--training.global_batch_size=8", "--training.seq_len=64",
                  "--validation.enable", "--validation.local_batch_size=5", "--validation.seq_len=32"});
  const BatchPlan training = make_batch_plan(config), validation = make_validation_plan(config);
  EXPECT_EQ(training.global_batch(), 8);
  EXPECT_EQ(training.accumulation, 4);
  EXPECT_EQ(training.sequence_length, 64);
  EXPECT_EQ(validation.global_batch(), 5);
  EXPECT_EQ(validation.sequence_length, 32);
}

TEST(BatchPlansOfAJob, AValidationSequenceIsAsLongAsATrainingOneUnlessItSaysOtherwise) {
  EXPECT_EQ(job_config({"--training.seq_len=64"}).validation.seq_len, 64);
  EXPECT_EQ(job_config({"--training.seq_len=64", "--validation.seq_len=2048"}).validation.seq_len, 2048);
  EXPECT_EQ(job_config({"--training.seq_len=4096", "--validation.enable"}).validation.seq_len, 4096);
}

TEST(ModelRequestOfAJob, TheLongerOfTrainingAndValidationSequencesCounts) {
  const std::vector<std::string> words{"--training.seq_len=64", "--validation.seq_len=256"};
  std::vector<std::string> enabled = words;
  enabled.push_back("--validation.enable");
  EXPECT_EQ(make_model_request(job_config(words), 300).sequence_length, 64);
  const ModelRequest request = make_model_request(job_config(enabled), 300);
  EXPECT_EQ(request.sequence_length, 256);
  EXPECT_EQ(request.tokenizer_vocabulary, 300);
}

TEST(CheckModel, UnitsToKeepInFp32AreThoseOfTheModel) {
  EXPECT_EQ(config_problems({"--training.keep_fp32=tok_embeddings,layers.5,head"}), "");
}

}  // namespace
}  // namespace titan
