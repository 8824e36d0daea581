#include "titan/estimate/simulate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/config_text.h"
#include "support/layout_row.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/job/job.h"
#include "titan/job/pipeline_job.h"

namespace titan {
namespace {

/// One rank of each pipeline coordinate of an 8B job.
std::vector<Plan> plans_of(int64_t world, std::vector<std::string> words) {
  words.insert(words.begin(), {"--model.name=llama3_1", "--model.flavor=8B", "--training.seq_len=8192",
                               "--training.dataset=c4_test", "--compile.enable", "--debug.seed=1"});
  const LoadedConfig loaded = load_config_text(Schema(), "", "job.toml", words, {});
  EXPECT_EQ(format_problems(loaded.problems), "");
  const ModelDescription model = describe_model(make_model_request(loaded.config, 128256));
  std::vector<Plan> plans;
  const DeviceMesh mesh = make_mesh(loaded.config, world);
  const MeshAxis pipeline[] = {MeshAxis::pp};
  for (const int64_t rank : mesh.members(0, pipeline)) {
    PlanRequest request = make_plan_request(loaded.config, {mesh, rank}, /*on_gpu=*/true);
    add_pipeline(request, loaded.config, model);
    plans.push_back(make_plan(model, request));
  }
  return plans;
}

double waits(const SimulatedRank& rank) {
  double seconds = 0;
  for (const auto& [purpose, part] : rank.seconds) seconds += purpose.starts_with("waiting") ? part : 0;
  return seconds;
}

double sum_of(const SimulatedRank& rank) {
  double seconds = 0;
  for (const auto& [purpose, part] : rank.seconds) seconds += part;
  return seconds;
}

std::string message_of(const std::string& gpu) {
  try {
    find_hardware(gpu);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    return error.what();
  }
  return "";
}

TEST(Simulation, KnowsGpusByNameAndFromAFileAndSaysWhatIsWrongWithEither) {
  for (const std::string& name : hardware_names()) EXPECT_GT(find_hardware(name).memory_bytes, 70 * kGiB) << name;
  EXPECT_EQ(message_of("h300"),
            "--gpu h300: no GPU of that name and no file; known are a100-80, b200, h100-95, "
            "h100-sxm, h200");
  const std::filesystem::path file = std::filesystem::temp_directory_path() / fmt::format("gpu-{}.toml", ::getpid());
  const auto written = [&](const std::string& text) {
    std::ofstream(file) << text;
    return message_of(file.string());
  };
  EXPECT_EQ(written("[mine]\nmemory_gib = 10\n"),
            file.string() + ": product_tflops is missing, or is not a number from 0 to 1e15");
  EXPECT_TRUE(written("[mine\n").starts_with(file.string() + ":1:")) << written("[mine\n");
  const std::string one_table = file.string() + " is to hold one table of a GPU, such as [my-gpu], and nothing else";
  EXPECT_EQ(written("a = 1\n"), one_table);
  EXPECT_EQ(written("[a]\n[b]\n"), one_table);
  const std::string rates =
      "[mine]\nmemory_gib = 10\nproduct_tflops = 1\nfloat8_tflops = 0\nattention_tflops = 1\nmemory_gb_s = {}\n"
      "nvlink_gb_s = 1\nnetwork_gb_s = 1\nhost_link_gb_s = 1\nhost_memory_gb_s = 1\ngpus_per_host = 4\n";
  EXPECT_EQ(written(fmt::format(fmt::runtime(rates), 0)), file.string() + ": memory_gb_s is to be above 0");
  for (const char* rate : {"nan", "inf", "1e300", "-1"}) {
    EXPECT_EQ(written(fmt::format(fmt::runtime(rates), rate)),
              file.string() + ": memory_gb_s is missing, or is not a number from 0 to 1e15");
  }
  EXPECT_EQ(written(fmt::format(fmt::runtime(rates), "1e-320")), file.string() + ": memory_gb_s is to be above 0");
  EXPECT_EQ(written(fmt::format(fmt::runtime(rates), 100)), "");
  EXPECT_EQ(find_hardware(file.string()).gpus_per_host, 4);
  EXPECT_EQ(find_hardware(file.string()).likely, find_hardware("h200").likely);
  const std::string whole = fmt::format(fmt::runtime(rates), 100);
  const std::string likely = "likely = { products = 0.5, float8 = 0.5, attention = 0.5, memory = 0.5 }\n";
  EXPECT_EQ(written(whole + likely), "");
  const Hardware one = find_hardware(file.string());
  EXPECT_FALSE(one.has_range());
  EXPECT_EQ(one.in_a_step(one.likely, /*flash_attention=*/true).attention_rate, one.attention_rate / 2);
  EXPECT_EQ(written(whole + "likely = 0.5\n"), file.string() + ": likely is to be a table of shares");
  EXPECT_EQ(written(whole + "good = { products = 0.5 }\n"),
            file.string() + ", good: float8 is missing, or is not a number from 0 to 1e15");
  EXPECT_EQ(written(whole + likely + "good = { products = 1.2, float8 = 0.5, attention = 0.5, memory = 0.5 }\n"),
            file.string() + ", good: shares are above 0 and at most 1");
  EXPECT_TRUE(written(whole + "good = { products = 1, float8 = 1, attention = 1, memory = 1, hope = 1 }\n")
                  .starts_with(file.string() + ", good:12: there is no key hope; keys are "));
  EXPECT_TRUE(written(whole + "gpus = 3\n").starts_with(file.string() + ":12: there is no key gpus; keys are "));
  EXPECT_EQ(written(whole.substr(0, whole.rfind('4')) + "2.5\n"),
            file.string() + ": gpus_per_host is a whole number from 1 to 1,024");
  std::filesystem::remove(file);
}

TEST(Simulation, OfOneGpuIsItsWorkOverItsRates) {
  const std::vector<Plan> plans = plans_of(1, {"--training.local_batch_size=1"});
  Hardware hardware = find_hardware("h200");
  const SimulatedStep step = simulate_step(plans, hardware);
  ASSERT_EQ(step.ranks.size(), 1u);
  EXPECT_NEAR(sum_of(step.ranks[0]), step.seconds, 1e-9 * step.seconds);
  EXPECT_EQ(waits(step.ranks[0]), 0);
  // 6 operations for each weight of a product and token; blocks have 6.98e9 of them, the head 0.53e9. Selective
  // recomputation of operations, the default, repeats some of the forward products.
  const double products = 6 * 8192.0 * (6.979e9 + 0.525e9);
  const double at_most = products * (1 + 1.0 / 3);
  EXPECT_GT(step.ranks[0].seconds.at("products"), products / hardware.product_rate);
  EXPECT_LT(step.ranks[0].seconds.at("products"), at_most / hardware.product_rate / 0.7);
  hardware.product_rate *= 2;
  const SimulatedStep faster = simulate_step(plans, hardware);
  EXPECT_NEAR(faster.ranks[0].seconds.at("products"), step.ranks[0].seconds.at("products") / 2,
              0.01 * step.ranks[0].seconds.at("products"));
}

/// Counted by hand, in ratios that no rate is in.
TEST(Simulation, CountsTheWorkOfTheModel) {
  const auto seconds_of = [](int layers) {
    const std::vector<Plan> plans =
        plans_of(1, {"--training.local_batch_size=1", "--activation_checkpoint.mode=none", "--training.dtype=bfloat16",
                     "--optimizer.state_dtype=bfloat16", fmt::format("--model.override.n_layers={}", layers)});
    Hardware hardware = find_hardware("h200");
    hardware.memory_rate *= 1e6;  // what fp32 gradients add to products is not counted here
    return simulate_step(plans, hardware).ranks[0].seconds;
  };
  std::map<std::string, double> all = seconds_of(32), half = seconds_of(16);
  const double block = (all["products"] - half["products"]) / 16, head = all["products"] - 32 * block;
  EXPECT_NEAR(head / block, 128256 * 4096 / (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336.0), 1e-6);
  EXPECT_NEAR(all["attention"], 2 * half["attention"], 1e-6 * all["attention"]);
  // AdamW reads 10 bytes a parameter and writes 6, the norm reads 4. SwiGLU moves eight tensors of the feed-forward's
  // width, 3.5 times that of the hidden states, and a block's last add three of these.
  EXPECT_NEAR(all["optimizer"] / all["gradient norm"], 4, 1e-6);
  EXPECT_NEAR((all["swiglu"] - half["swiglu"]) / (all["residual add"] - half["residual add"]), 8 * 3.5 / 3, 1e-6);
}

TEST(Simulation, DocumentsAndDeterministicRunsTakeFlashAttention) {
  const Hardware hardware = find_hardware("h200");
  const auto attention = [&](bool flash) {
    return simulate_step(plans_of(1, {"--training.local_batch_size=1"}), hardware.in_a_step(hardware.likely, flash))
        .ranks[0]
        .seconds.at("attention");
  };
  EXPECT_NEAR(attention(true) / attention(false),
              hardware.attention_rate * hardware.likely.attention /
                  (hardware.flash_attention_rate * hardware.likely.flash_attention),
              1e-6);
}

/// Of a product's time: half of what its result takes beyond one write in bf16.
TEST(Simulation, CountsWhatGradientsInFp32AddToProducts) {
  Hardware hardware = find_hardware("h200");
  hardware.product_rate = 1e30;  // what is left of a product is its memory, or the exposed half of its result
  const auto seconds_of = [&](const char* chunks, const char* batch) {
    return simulate_step(plans_of(1, {"--training.local_batch_size=1", "--training.dtype=bfloat16", chunks, batch}),
                         hardware)
        .ranks[0]
        .seconds;
  };
  const char *one = "--training.global_batch_size=1", *three = "--training.global_batch_size=3";
  const double weights = 128256.0 * 4096, memory = hardware.memory_rate;
  // Each chunk but the first reads the gradient and writes it again, 8 bytes a number; and reads the weights twice.
  const auto head = [&](const char* chunks) { return seconds_of(chunks, one).at("products"); };
  EXPECT_NEAR(
      (head("--training.loss_chunks=8") - head("--training.loss_chunks=4")) / (4 * weights * (8 + 2 * 2) / memory), 1,
      0.01);
  // Later microbatches add to all gradients but the embedding's rows.
  EXPECT_FALSE(seconds_of("--training.loss_chunks=8", one).contains("gradient accumulation"));
  EXPECT_NEAR(seconds_of("--training.loss_chunks=8", three).at("gradient accumulation"),
              2 * 0.5 * 4 * (8030261248.0 - weights) / memory, 1e-3);
}

/// AdamW and the norm read 2 bytes of a block's gradient instead of 4, and products write 2.
TEST(Simulation, CountsWhatGradientsInBf16Spare) {
  Hardware hardware = find_hardware("h200");
  hardware.product_rate = 1e30;  // what is left of a product is its memory
  const auto seconds_of = [&](const char* gradients) {
    return simulate_step(plans_of(1, {"--training.local_batch_size=1", "--training.dtype=bfloat16",
                                      "--optimizer.state_dtype=bfloat16", gradients}),
                         hardware)
        .ranks[0]
        .seconds;
  };
  std::map<std::string, double> wide = seconds_of("--training.gradient_dtype=float32");
  std::map<std::string, double> narrow = seconds_of("--training.gradient_dtype=bfloat16");
  const double all = 8030261248.0, blocks = all - 2 * 128256.0 * 4096 - 4096;
  const double norms = 64 * 4096.0;  // whose gradients no product writes
  const double spared = 2 * blocks / hardware.memory_rate;
  EXPECT_NEAR((wide["gradient norm"] - narrow["gradient norm"]) / spared, 1, 1e-6);
  EXPECT_NEAR((wide["optimizer"] - narrow["optimizer"]) / spared, 1, 1e-6);
  EXPECT_NEAR((wide["products"] - narrow["products"]) / spared, (blocks - norms) / blocks, 1e-6);
  EXPECT_NEAR(wide["gradient norm"] / narrow["gradient norm"], 4 * all / (4 * all - 2 * blocks), 1e-6);
}

TEST(Simulation, ShardedWeightsAreWaitedForWhereLinksAreSlow) {
  const std::vector<Plan> plans = plans_of(8, {"--training.local_batch_size=1"});
  Hardware hardware = find_hardware("h100-sxm");
  const double fast = waits(simulate_step(plans, hardware).ranks[0]);
  hardware.nvlink_rate /= 20;
  const SimulatedStep slow = simulate_step(plans, hardware);
  // Twice bf16 weights and once fp32 gradients, 7/8 of each; gathers and reductions are on links of their own.
  const double gathers = 2 * 2 * 8.03e9 * 7 / 8 / hardware.nvlink_rate;
  EXPECT_GT(slow.seconds, gathers);
  EXPECT_GT(waits(slow.ranks[0]), 10 * fast);
}

TEST(Simulation, AsyncTensorParallelismWaitsLessAndAddsPartialSumsByKernels) {
  const auto seconds_of = [](const char* option) {
    return simulate_step(
        plans_of(8, {"--training.local_batch_size=1", "--parallelism.tensor_parallel_degree=8",
                     "--activation_checkpoint.mode=none", "--training.mixed_precision_param=bfloat16", option}),
        find_hardware("h100-sxm"));
  };
  const SimulatedStep collectives = seconds_of("--parallelism.enable_async_tensor_parallel=false");
  const SimulatedStep async = seconds_of("--parallelism.enable_async_tensor_parallel");
  EXPECT_LT(waits(async.ranks[0]), 0.7 * waits(collectives.ranks[0]));
  EXPECT_FALSE(collectives.ranks[0].seconds.contains("partial sums"));
  // Four scatters in each of 32 layers, the embedding's and the head's: each part is read, its fp32 sum read and
  // written. The last residual add of a layer reads two and writes one of the rank's eighth of the hidden states.
  const double size = 2;
  EXPECT_NEAR(async.ranks[0].seconds.at("partial sums") / async.ranks[0].seconds.at("residual add"),
              (4 * 32 + 2) * (size + 8) / (32 * 3 * size / 8), 1e-6);
}

TEST(Simulation, ABubbleShrinksWithMoreMicrobatches) {
  const auto share = [](int64_t samples) {
    const SimulatedStep step = simulate_step(
        plans_of(4, {"--parallelism.pipeline_parallel_degree=4", "--parallelism.pipeline_parallel_schedule=1F1B",
                     fmt::format("--training.local_batch_size={}", samples)}),
        find_hardware("h100-sxm"));
    double busy = 0;
    for (const SimulatedRank& rank : step.ranks) busy += sum_of(rank) - waits(rank);
    return 1 - busy / (4 * step.seconds);
  };
  // (p − 1) / (m + p − 1) where all stages take as long; the last one has the head, too.
  EXPECT_NEAR(share(4), 3.0 / 7, 0.12);
  EXPECT_NEAR(share(16), 3.0 / 19, 0.12);
  EXPECT_GT(share(4), share(16) + 0.1);
}

TEST(Simulation, WhatIsOnTheHostIsWaitedForWhereItsLinkIsSlow) {
  const std::vector<std::string> common{"--training.local_batch_size=1", "--activation_checkpoint.mode=full"};
  const auto with = [&](const char* option) {
    std::vector<std::string> words = common;
    words.emplace_back(option);
    return plans_of(1, words);
  };
  Hardware hardware = find_hardware("h200");
  const double device_only = simulate_step(plans_of(1, common), hardware).seconds;
  const std::vector<Plan> activations = with("--activation_checkpoint.offload");
  EXPECT_NEAR(simulate_step(activations, hardware).seconds, device_only, 0.01 * device_only);
  for (const std::vector<Plan>& plans :
       {activations, with("--optimizer.offload"), with("--training.enable_cpu_offload")}) {
    const Plan& plan = plans[0];
    const int64_t bytes = plan.activation_offload_bytes + plan.optimizer_offload_bytes + plan.to_host_bytes;
    ASSERT_GT(bytes, 0);
    hardware.host_memory_rate = hardware.memory_rate;
    hardware.host_link_rate = 1e15;
    EXPECT_NEAR(simulate_step(plans, hardware).seconds, device_only, 0.02 * device_only);
    hardware.host_link_rate = 1e9;
    const SimulatedStep slow = simulate_step(plans, hardware, /*keep_events=*/true);
    EXPECT_GT(slow.seconds, static_cast<double>(bytes) / hardware.host_link_rate);
    EXPECT_GT(waits(slow.ranks[0]), 0.5 * static_cast<double>(bytes) / hardware.host_link_rate);
    double copied = 0;
    for (const TimedEvent& event : slow.ranks[0].events) {
      if (event.track == "copies to the host") copied += (event.end - event.begin) * hardware.host_link_rate;
    }
    EXPECT_NEAR(copied, static_cast<double>(bytes), 0.001 * static_cast<double>(bytes));
  }
}

TEST(Simulation, OfFloat8OnAGpuWithoutItIsRefused) {
  const std::vector<Plan> plans = plans_of(
      8, {"--quantize.linear.float8.enable_fsdp_float8_all_gather", "--model.converters=quantize.linear.float8"});
  ASSERT_TRUE(plans[0].request.float8);
  EXPECT_GT(simulate_step(plans, find_hardware("h200")).seconds, 0);
  EXPECT_THROW(simulate_step(plans, find_hardware("a100-80")), Error);
}

TEST(Simulation, FillsTheGradientOfAnEmbeddingWithZerosOnceAStepUnlessTheHeadHasWrittenIt) {
  const Hardware hardware = find_hardware("h200");
  const auto bytes_with = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words{"--training.local_batch_size=1", "--training.dtype=bfloat16",
                                   "--optimizer.state_dtype=bfloat16", "--activation_checkpoint.mode=full"};
    words.insert(words.end(), options.begin(), options.end());
    return simulate_step(plans_of(1, words), hardware).ranks[0].seconds.at("embedding") * hardware.memory_rate;
  };
  const double rows = 8192.0 * 4096, all = 128256.0 * 4096;
  const double reads_and_adds = rows * (2 + 2) + rows * (2 + 8);
  EXPECT_NEAR(bytes_with({}), reads_and_adds + 4 * all, 1e-6 * all);
  EXPECT_NEAR(bytes_with({"--training.global_batch_size=4"}), 4 * reads_and_adds + 4 * all, 1e-6 * all);
  EXPECT_NEAR(bytes_with({"--model.override.embeddings=tied"}), reads_and_adds, 1e-6 * all);
}

/// The output of attention is saved in bf16 for attention's backward. Bytes by hand, of wo alone.
TEST(Simulation, CastsAttentionsOutputAgainInBackwardUnlessAReplayHasCastIt) {
  const Hardware hardware = find_hardware("h200");
  const auto bytes_with = [&](const char* mode) {
    const std::vector<Plan> plans =
        plans_of(1, {"--training.local_batch_size=1", "--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16",
                     "--model.converters=quantize.linear.float8",
                     "--quantize.linear.float8.filter_fqns=wq,wk,wv,w1,w2,w3,output", mode});
    return simulate_step(plans, hardware).ranks[0].seconds.at("float8 casts") * hardware.memory_rate / 32;
  };
  const double x = 8192.0 * 4096, w = 4096.0 * 4096;
  // Forward finds the amax of the input, casts the input by rows and the weight in both layouts. Backward reads and
  // casts its gradient in both layouts, whose amax a kernel before found, and casts the input by columns.
  const double forward = x * (2 + 2 + 1) + w * (2 + 2), backward = x * (2 + 2) + x * (2 + 1);
  EXPECT_NEAR(bytes_with("--activation_checkpoint.mode=none"), forward + backward, 1e-6 * backward);
  EXPECT_NEAR(bytes_with("--activation_checkpoint.mode=full"), 2 * forward + backward - 2 * x, 1e-6 * backward);
}

TEST(Simulation, ReadsFloat8WeightsForTheirScalesWhereTheOptimizerDoesNotFindTheirAmaxes) {
  const Hardware hardware = find_hardware("h200");
  const auto bytes_with = [&](int64_t world, const std::vector<std::string>& options) {
    std::vector<std::string> words{"--training.local_batch_size=1", "--activation_checkpoint.mode=none",
                                   "--model.converters=quantize.linear.float8", "--training.dtype=bfloat16"};
    words.insert(words.end(), options.begin(), options.end());
    return simulate_step(plans_of(world, words), hardware).ranks[0].seconds.at("float8 casts") * hardware.memory_rate;
  };
  const double matrices = 32 * (2 * 4096.0 * 4096 + 2 * 1024.0 * 4096 + 3 * 4096.0 * 14336);
  const double found = bytes_with(1, {});
  EXPECT_NEAR(bytes_with(1, {"--optimizer.implementation=foreach"}), found + 2 * matrices, 1e-6 * found);
  // What is gathered in bf16 is read where it is whole.
  EXPECT_NEAR(bytes_with(8, {}), found + 2 * matrices, 1e-6 * found);
}

TEST(Simulation, EventsOfATrackFollowEachOther) {
  const SimulatedStep step = simulate_step(plans_of(8, {"--training.local_batch_size=1"}), find_hardware("h200"), true);
  std::map<std::string, double> ends;
  ASSERT_GT(step.ranks[0].events.size(), 100u);
  for (const TimedEvent& event : step.ranks[0].events) {
    EXPECT_GE(event.begin, ends[event.track] - 1e-12) << event.name;
    ends[event.track] = event.end;
    EXPECT_LE(event.end, step.seconds * (1 + 1e-9));
  }
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(step));
  EXPECT_EQ(trace["traceEvents"].size(), step.ranks[0].events.size());
  EXPECT_EQ(trace["traceEvents"][0]["ph"], "X");
}

TEST(PeakFlops, KnowsTheDevicesOfTheTableAndKeepsTheirVariantsApart) {
  EXPECT_EQ(peak_flops_of("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H100 NVL"), 835e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H200"), 989e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H20"), 148e12);
  EXPECT_EQ(peak_flops_of("NVIDIA H20-3e"), 148e12);
  EXPECT_EQ(peak_flops_of("NVIDIA B200"), 2.25e15);
  EXPECT_EQ(peak_flops_of("NVIDIA GB200"), 2.5e15);
  EXPECT_EQ(peak_flops_of("NVIDIA L40S"), 362e12);
  EXPECT_EQ(peak_flops_of("AMD EPYC 9654"), std::nullopt);
}

TEST(Simulation, UpdatesOfWholeMatricesTakeTimeAndMemory) {
  LayoutRow row;
  row.shard = row.tensor = 2;
  const auto simulated = [&](bool whole) {
    row.whole_matrices = whole;
    const std::vector<Plan> plans{plan_of(row, 0)};
    std::map<std::string, double> seconds = simulate_step(plans, find_hardware("h100-sxm")).ranks[0].seconds;
    for (const MemoryPurpose& purpose : plans[0].memory) seconds["memory of " + purpose.name] = purpose.bytes;
    return seconds;
  };
  std::map<std::string, double> with = simulated(true), without = simulated(false);
  EXPECT_GT(with["whole matrices, as if in bf16"], 0);
  EXPECT_GT(with["waiting for matrix"], 0) << "messages of matrices are not free";
  EXPECT_GT(with["memory of matrices being updated"], 0);
  EXPECT_EQ(2 * with["memory of optimizer state"], without["memory of optimizer state"])
      << "one moment in place of two";
  EXPECT_FALSE(without.contains("whole matrices, as if in bf16") ||
               without.contains("memory of matrices being updated"));
}

TEST(Simulation, PartsOfMatricesTakeAsLongAsOneCardNeedsForWhatItSendsOrReceives) {
  const Hardware hardware = find_hardware("h100-sxm");
  for (const int64_t ranks : {8, 16}) {  // one host and two
    LayoutRow row;
    row.shard = ranks;
    row.whole_matrices = true;
    const std::vector<Plan> plans{plan_of(row, 0)};
    double seconds = 0, least = 0;
    for (const TimedEvent& event : simulate_step(plans, hardware, true).ranks[0].events) {
      if (event.track.starts_with(communicator_names::kMatrix)) seconds += event.end - event.begin;
    }
    for (const WeightGroupPlan& group : plans[0].groups) {
      const MatrixBytes bytes = matrix_bytes(plans[0], group);
      if (group.matrices.empty()) continue;
      const int64_t received = bytes.owned - (bytes.parts - bytes.shards);
      least += static_cast<double>(std::max(bytes.collected, received) + std::max(bytes.returned, bytes.shards));
    }
    least /= ranks > hardware.gpus_per_host ? hardware.network_rate : hardware.nvlink_rate;
    EXPECT_GT(least, 0) << ranks;
    EXPECT_GT(seconds, least) << ranks << ": latencies come on top";
    EXPECT_LT(seconds, least + 1e-3) << ranks;
  }
}

}  // namespace
}  // namespace titan
