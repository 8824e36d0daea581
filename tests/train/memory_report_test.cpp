#include "titan/train/memory_report.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <system_error>

#include "job.h"
#include "titan/base/error.h"

namespace titan {
namespace {

std::unique_ptr<Parameter> a_parameter(const std::string& name, std::vector<int64_t> shape, bool own_copy) {
  ParameterSpec spec{name, shape, {}};
  auto parameter = std::make_unique<Parameter>(spec);
  parameter->master = at::empty(shape, at::kFloat);
  parameter->compute_copy = own_copy ? at::empty(shape, at::kBFloat16) : parameter->master;
  return parameter;
}

TEST(MemoryRows, AddUpToThePeakAndStandBesideThePlan) {
  const auto a = a_parameter("a", {16, 4}, false), b = a_parameter("b", {10}, true);
  const std::vector<Parameter*> parameters{a.get(), b.get()};
  Plan plan;
  plan.memory = {{"parameters", 300},
                 {"gradients", 70},
                 {"optimizer state", 592},
                 {"activations kept", 800},
                 {"one block recomputed", 50}};
  const std::vector<MemoryRow> rows =
      memory_rows(plan.memory, parameters,
                  {.before_bytes = 1000, .gradient_bytes = 70, .optimizer_bytes = 600, .peak_bytes = 9999});
  std::map<std::string, MemoryRow> by_name;
  int64_t planned = 0, actual = 0;
  for (const MemoryRow& row : rows) {
    by_name[row.purpose] = row;
    planned += row.planned;
    actual += row.actual;
  }
  EXPECT_EQ(actual, 9999);
  EXPECT_EQ(planned, plan.predicted_bytes());
  EXPECT_EQ(by_name["parameters"].actual, (64 + 10) * 4);
  EXPECT_EQ(by_name["parameters"].planned, 300);
  EXPECT_EQ(by_name["parameters, compute copy"].actual, 10 * 2) << "found, though nobody planned it";
  EXPECT_EQ(by_name["process and libraries"].actual, 1000);
  EXPECT_EQ(by_name["optimizer state"].planned, 592);
  EXPECT_EQ(by_name["optimizer state"].actual, 600);
  EXPECT_EQ(by_name["gradients"].actual, 70);
  EXPECT_EQ(by_name["activations and the rest"].planned, 850) << "what cannot be measured apart is one sum";
}

TEST(MemoryRows, OnADeviceLeaveOutWhatLiesOnTheHost) {
  const auto a = a_parameter("a", {16, 4}, true);
  const std::vector<Parameter*> parameters{a.get()};
  Plan plan;
  plan.memory = {{"parameters", 256, /*on_host=*/true},
                 {"parameters, compute copy", 128, true},
                 {"gathered weights", 64},
                 {"gradients", 256, true},
                 {"optimizer state", 512, true},
                 {"activations kept", 800},
                 {"activations on the host", 900, true}};
  MeasuredMemory measured{.weight_slot_bytes = 64,
                          .gradient_bytes = 256,
                          .optimizer_bytes = 512,
                          .host_activation_bytes = 900,
                          .peak_bytes = 1000};
  const auto rows_with = [&](bool device_only) {
    measured.device_only = device_only;
    std::vector<std::string> lines;
    for (const MemoryRow& row : memory_rows(plan.memory, parameters, measured)) {
      lines.push_back(fmt::format("{}: {} {}", row.purpose, row.planned, row.actual));
    }
    return lines;
  };
  EXPECT_EQ(rows_with(true),
            (std::vector<std::string>{"gathered weights: 64 64", "activations and the rest: 800 936"}));
  measured.peak_bytes = 4000;
  EXPECT_EQ(rows_with(false).size(), 7u) << "on a CPU it is the same memory";
  EXPECT_EQ(rows_with(false).back(), "activations and the rest: 800 1884");
}

TEST(MemoryRows, OfGradientsThatPassAreOneOfTheRest) {
  Plan plan;
  plan.memory = {{"gradients", 70}, {"activations kept", 800}};
  const std::vector<MemoryRow> rows = memory_rows(plan.memory, {}, {.peak_bytes = 900});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].planned, 870);
  EXPECT_EQ(rows[0].actual, 900);
}

TEST(MemoryRows, AreShownWithTheirSums) {
  const std::vector<MemoryRow> rows{{"process and libraries", 0, 1 << 20},
                                    {"parameters", 3 << 20, 3 << 20},
                                    {"activations and the rest", 1 << 20, 2 << 20}};
  EXPECT_EQ(comparison_table(rows),
            (std::vector<std::string>{"                                  planned       actual",
                                      "  process and libraries                       1.00 MiB",
                                      "  parameters                     3.00 MiB     3.00 MiB",
                                      "  activations and the rest       1.00 MiB     2.00 MiB",
                                      "  together                       4.00 MiB     6.00 MiB"}));
}

template <class Throw>
std::optional<std::string> words_of(const Throw& fail) {
  try {
    fail();
  } catch (...) {
    return out_of_memory_words(std::current_exception());
  }
  return std::nullopt;
}

TEST(OutOfMemory, IsToldFromOtherFailuresWithTheAllocatorsWords) {
  EXPECT_EQ(words_of([] { throw std::bad_alloc(); }), "");
  const auto system = [](std::errc code) { throw std::system_error(std::make_error_code(code)); };
  EXPECT_EQ(words_of([&] { system(std::errc::resource_unavailable_try_again); }), std::nullopt) << "of std::thread";
  EXPECT_EQ(words_of([&] { system(std::errc::not_enough_memory); }), "");
  EXPECT_EQ(words_of([&] { system(std::errc::permission_denied); }), std::nullopt);
  EXPECT_EQ(words_of([] {
              TORCH_CHECK(false,
                          "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: "
                          "you tried to allocate 8 bytes. Error code 12");
            }),
            "you tried to allocate 8 bytes");
  EXPECT_EQ(words_of([] { TORCH_CHECK(false, "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has"); }),
            "Tried to allocate 2 GiB");
  EXPECT_EQ(words_of([] { TORCH_CHECK(false, "sizes differ"); }), std::nullopt);
  const auto plain = [](const char* message) { return words_of([&] { throw std::runtime_error(message); }); };
  EXPECT_EQ(plain("kernel adam: out of memory"), "") << "what a launch of ours throws";
  EXPECT_EQ(plain("DefaultCPUAllocator: can't allocate memory: you tried …"), "");
  EXPECT_EQ(plain("something else"), std::nullopt);
  EXPECT_EQ(words_of([] { throw Error(ExitCode::storage, "out of memory"); }), std::nullopt);
}

TEST(OutOfMemory, MayBeWhatALibrarySaysNothingPreciseAbout) {
  const auto words = [](const char* message) {
    return vague_words(std::make_exception_ptr(std::runtime_error(message)));
  };
  EXPECT_EQ(words("could not execute a primitive"), "could not execute a primitive");
  EXPECT_EQ(words("could not create a primitive"), "could not create a primitive");
  EXPECT_EQ(words("sizes differ"), std::nullopt);
}

TEST(MemoryRows, OfMemoryThatNothingWasWrittenToYetAreNotNegative) {
  Plan plan;
  plan.memory = {{"gradients", 70}, {"activations kept", 800}};
  const std::vector<MemoryRow> rows = memory_rows(plan.memory, {}, {.gradient_bytes = 70, .peak_bytes = 30});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].actual, 0);
}

class SettingsThatFit : public ::testing::Test {
 protected:
  MemoryQuestion question(const JobConfig& config, int64_t allowed, int64_t world = 1) const {
    return {config,
            {make_mesh(config, world), 0},
            2048,
            /*device_only=*/false,
            allowed > 0 ? std::optional(allowed) : std::nullopt};
  }
  JobConfig job(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--training.local_batch_size=32", "--training.seq_len=512",
                                   "--activation_checkpoint.mode=none", "--model.override.dim=256",
                                   "--model.override.n_layers=6"};
    words.insert(words.end(), more.begin(), more.end());
    return small_job(folder_, words);
  }

  /// A validation of many times the tokens of a step.
  JobConfig validating_job(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"--training.local_batch_size=1", "--validation.enable",
                                   "--validation.local_batch_size=64", "--validation.seq_len=512"};
    words.insert(words.end(), more.begin(), more.end());
    return job(words);
  }
  /// The same job with what a setting of one or two numbers says.
  static JobConfig with(JobConfig config, const MemorySetting& setting) {
    const std::map<std::string, int64_t*> places{{"training.local_batch_size", &config.training.local_batch_size},
                                                 {"validation.local_batch_size", &config.validation.local_batch_size},
                                                 {"validation.seq_len", &config.validation.seq_len}};
    std::istringstream words(setting.words);
    for (std::string key, equals, joint; words >> key >> equals;) {
      EXPECT_TRUE(places.contains(key)) << setting.words;
      if (!places.contains(key)) break;
      words >> *places.at(key) >> joint;
    }
    return config;
  }

  TestFolder folder_;
};

TEST_F(SettingsThatFit, AreThreeWithWhichThePlanFitsCheapestFirst) {
  const JobConfig config = job();
  const int64_t now = predicted_bytes(question(config, 0));
  const std::vector<MemorySetting> settings = settings_that_fit(question(config, now / 2));
  ASSERT_EQ(settings.size(), 3u);
  for (const MemorySetting& setting : settings) EXPECT_LE(1.5 * static_cast<double>(setting.bytes), now / 2);
  // As an option each says what it does.
  JobConfig tried = config;
  ASSERT_EQ(settings[0].words.find("training.local_batch_size = "), 0u) << settings[0].words;
  tried.training.local_batch_size = std::stoll(settings[0].words.substr(28));
  EXPECT_EQ(predicted_bytes(question(tried, 0)), settings[0].bytes);
  ++tried.training.local_batch_size;
  EXPECT_GT(1.5 * static_cast<double>(predicted_bytes(question(tried, 0))), now / 2) << "the largest that fits";
  EXPECT_EQ(settings[1].words, "activation_checkpoint.mode = \"full\"");
}

TEST_F(SettingsThatFit, RecomputeNormsAndSwigluFirstWhereThatIsEnough) {
  const JobConfig config = job();
  const int64_t now = predicted_bytes(question(config, 0));
  const std::vector<MemorySetting> settings = settings_that_fit(question(config, now * 5 / 4));
  ASSERT_FALSE(settings.empty());
  EXPECT_EQ(settings[0].words,
            "activation_checkpoint.mode = \"selective\" with activation_checkpoint.selective_ac_option = "
            "\"norm,swiglu\"");
}

TEST_F(SettingsThatFit, AreValidationsWhereThatAloneTakesTooMuch) {
  const JobConfig config = validating_job();
  MemoryQuestion asked = question(config, 0);
  const int64_t now = predicted_bytes(asked);
  asked.ran_out = RunPhase::training;
  const int64_t in_steps = predicted_bytes(asked);
  ASSERT_LT(in_steps, now / 2);
  asked.ran_out = RunPhase::validation;
  EXPECT_EQ(predicted_bytes(asked), now);
  asked.allowed = now * 3 / 4;
  for (const std::optional<RunPhase> ran_out : {std::optional<RunPhase>(), std::optional(RunPhase::validation)}) {
    asked.ran_out = ran_out;
    const std::vector<MemorySetting> settings = settings_that_fit(asked);
    ASSERT_EQ(settings.size(), 2u) << "one of them is enough";
    EXPECT_EQ(settings[0].words, "validation.local_batch_size = 16");
    EXPECT_EQ(settings[1].words, "validation.seq_len = 128");
    for (const MemorySetting& setting : settings) {
      const JobConfig tried = with(config, setting);
      EXPECT_EQ(predicted_bytes(question(tried, 0)), setting.bytes);
      EXPECT_LE(1.5 * static_cast<double>(setting.bytes), *asked.allowed);
    }
  }
  // Nobody knows what there is: a fifth less.
  asked.allowed.reset();
  ASSERT_FALSE(settings_that_fit(asked).empty());
  EXPECT_LE(settings_that_fit(asked)[0].bytes, now * 4 / 5);
  EXPECT_EQ(settings_that_fit(asked)[0].words, "validation.local_batch_size = 32");
}

TEST_F(SettingsThatFit, ChangeBothSizesOfAValidationWhereOneIsNotEnoughAndTrainingWhereNeitherIs) {
  const JobConfig config = validating_job({"--validation.local_batch_size=4", "--validation.seq_len=16384"});
  MemoryQuestion asked = question(config, 0);
  JobConfig least = config;
  least.validation.local_batch_size = 1;
  least.validation.seq_len = 256;
  asked.ran_out = RunPhase::validation;
  MemoryQuestion asked_of_least = question(least, 0);
  asked_of_least.ran_out = RunPhase::validation;
  asked.allowed = predicted_bytes(asked_of_least) * 3 / 2 + 100;
  const std::vector<MemorySetting> settings = settings_that_fit(asked);
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].words, "validation.local_batch_size = 1 with validation.seq_len = 256");
  // Weights and states alone take more: that is no matter of validation's batches.
  asked.allowed = predicted_bytes(asked_of_least) * 9 / 10;
  const std::vector<MemorySetting> narrow = settings_that_fit(asked, 20);
  ASSERT_FALSE(narrow.empty());
  for (const MemorySetting& setting : narrow) EXPECT_NE(setting.words.find("validation."), 0u) << setting.words;
}

TEST_F(SettingsThatFit, LeaveTheBatchOfAValidationWhatIsLeftBesideWhatWasHeldBeforeIt) {
  const JobConfig config = validating_job();
  MemoryQuestion asked = question(config, 0);
  asked.ran_out = RunPhase::validation;
  const auto taken_by = [&](int64_t samples) {
    JobConfig other = config;
    other.validation.local_batch_size = samples;
    MemoryQuestion its = question(other, 0);
    its.ran_out = RunPhase::validation;
    return predicted_bytes(its);
  };
  const int64_t sample = (taken_by(64) - taken_by(32)) / 32;
  asked.allowed = taken_by(4);  // by the whole plan, a third of it left over, one would not fit
  EXPECT_NE(settings_that_fit(asked).at(0).words, "validation.local_batch_size = 4");
  asked.held = *asked.allowed - sample * 13 / 2;
  EXPECT_EQ(settings_that_fit(asked).at(0).words, "validation.local_batch_size = 4");
  asked.allowed = 2 * predicted_bytes(asked);
  asked.held = *asked.allowed - sample * 100;
  EXPECT_EQ(settings_that_fit(asked).at(0).words, "validation.local_batch_size = 32") << "64 did not fit";
}

TEST_F(SettingsThatFit, AreOfTrainingAndOfValidationWhereBothTakeTooMuch) {
  const JobConfig config = validating_job({"--training.local_batch_size=32", "--validation.local_batch_size=256"});
  MemoryQuestion asked = question(config, 0);
  asked.ran_out = RunPhase::training;
  asked.allowed = predicted_bytes(asked) / 2;
  const std::vector<MemorySetting> settings = settings_that_fit(asked);
  ASSERT_FALSE(settings.empty());
  EXPECT_EQ(settings[0].words.find("training.local_batch_size = "), 0u) << settings[0].words;
  const JobConfig tried = with(config, settings[0]);
  EXPECT_LT(tried.validation.local_batch_size, config.validation.local_batch_size) << settings[0].words;
  EXPECT_LE(1.5 * static_cast<double>(predicted_bytes(question(tried, 0))), *asked.allowed);
  JobConfig half = tried;
  half.validation.local_batch_size = config.validation.local_batch_size;
  EXPECT_GT(1.5 * static_cast<double>(predicted_bytes(question(half, 0))), *asked.allowed) << "it was needed";
}

TEST_F(SettingsThatFit, LeaveOutLengthsOfAValidationThatRanksCannotShare) {
  const JobConfig config = validating_job(
      {"--parallelism.context_parallel_degree=2", "--validation.seq_len=1080", "--training.seq_len=128"});
  const MemoryQuestion asked = question(config, 0, 2);
  const int64_t now = predicted_bytes(asked);
  for (const int64_t part : {4, 3, 2}) {
    for (const MemorySetting& setting : settings_that_fit(question(config, now * 3 / part / 2, 2), 20)) {
      EXPECT_EQ(with(config, setting).validation.seq_len % 4, 0) << setting.words;
    }
  }
}

bool offers(const std::vector<MemorySetting>& settings, const std::string& words) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const MemorySetting& setting) { return setting.words.find(words) == 0; });
}

TEST_F(SettingsThatFit, AreOtherLayoutsOfAsManyRanks) {
  const std::string replicas =
      "parallelism.data_parallel_replicate_degree = 1 with parallelism.data_parallel_shard_degree = 4";
  const std::string tensor = "parallelism.tensor_parallel_degree = 2 with parallelism.data_parallel_shard_degree = 2";
  const auto found = [&](const std::vector<std::string>& degrees) {
    const JobConfig config = job(degrees);
    const int64_t allowed = predicted_bytes(question(config, 0, 4)) * 5 / 4;
    const std::vector<MemorySetting> settings = settings_that_fit(question(config, allowed, 4), 20);
    for (const MemorySetting& setting : settings) {
      const int64_t world = 4 * setting.times_ranks;
      EXPECT_EQ(predicted_bytes(question(setting.config, 0, world)), setting.bytes) << setting.words;
    }
    return settings;
  };
  const std::vector<std::string> heavy{"--training.local_batch_size=1", "--training.seq_len=128"};
  std::vector<std::string> replicated = heavy, sharded = heavy;
  replicated.insert(replicated.end(),
                    {"--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=2"});
  sharded.insert(sharded.end(), {"--parallelism.data_parallel_shard_degree=4", "--training.local_batch_size=8"});
  EXPECT_TRUE(offers(found(replicated), replicas));
  EXPECT_TRUE(offers(found(sharded), tensor));
  EXPECT_FALSE(offers(found(sharded), "parallelism.data_parallel_replicate_degree"));
  // Two heads: no other degree divides them.
  EXPECT_FALSE(offers(found({"--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"}),
                      "parallelism.tensor_parallel_degree"));
}

TEST_F(SettingsThatFit, NarrowTheStatesOrShareThemWhereWeightsAreTheMatter) {
  const std::vector<std::string> heavy{"--training.local_batch_size=1", "--training.seq_len=128",
                                       "--model.override.n_layers=2", "--activation_checkpoint.mode=full"};
  const std::string narrow = "optimizer.state_dtype = \"bfloat16\"";
  const JobConfig config = job(heavy);
  const std::vector<MemorySetting> settings =
      settings_that_fit(question(config, predicted_bytes(question(config, 0)) * 5 / 4), 20);
  ASSERT_FALSE(settings.empty());
  EXPECT_EQ(settings[0].words, narrow);
  EXPECT_TRUE(offers(settings, "parallelism.data_parallel_shard_degree = "));
  EXPECT_FALSE(offers(settings, narrow + " with training.dtype")) << "computing in fp32, weights in bf16 need a copy";
  std::vector<std::string> in_bf16 = heavy;
  in_bf16.push_back("--training.mixed_precision_param=bfloat16");
  const JobConfig other = job(in_bf16);
  EXPECT_TRUE(offers(settings_that_fit(question(other, predicted_bytes(question(other, 0))), 20),
                     narrow + " with training.dtype = \"bfloat16\""));
}

TEST_F(SettingsThatFit, AreOnTheHostWhereThatIsOtherMemory) {
  const JobConfig config = job({"--training.local_batch_size=1", "--training.seq_len=128",
                                "--model.override.n_layers=2", "--activation_checkpoint.mode=full"});
  MemoryQuestion on_device = question(config, 0);
  on_device.device_only = true;
  on_device.allowed = predicted_bytes(on_device) * 5 / 4;
  const std::vector<MemorySetting> there = settings_that_fit(on_device, 20);
  const std::vector<MemorySetting> on_cpu = settings_that_fit(question(config, *on_device.allowed), 20);
  for (const char* words : {"optimizer.offload = true", "training.enable_cpu_offload = true"}) {
    EXPECT_TRUE(offers(there, words)) << words;
    EXPECT_FALSE(offers(on_cpu, words)) << words << ": on a CPU that saves nothing";
  }
}

TEST_F(SettingsThatFit, LeaveOutWhatTheRanksCannotDoAndAreEmptyWhereNothingHelps) {
  // A step of 32 samples: batches that do not divide it are no settings.
  const JobConfig config = job({"--training.global_batch_size=32"});
  const int64_t now = predicted_bytes(question(config, 0));
  const std::vector<MemorySetting> settings = settings_that_fit(question(config, now * 3 / 4), 20);
  EXPECT_TRUE(offers(settings, "training.local_batch_size = "));
  for (const MemorySetting& setting : settings) {
    if (setting.words.find("training.local_batch_size = ") != 0) continue;
    EXPECT_EQ(32 % std::stoll(setting.words.substr(28)), 0) << setting.words;
  }
  EXPECT_TRUE(settings_that_fit(question(config, 1000)).empty());
  MemoryQuestion full = question(config, 0);
  full.allowed = 0;
  EXPECT_TRUE(settings_that_fit(full).empty()) << "no memory at all is not memory that nobody knows of";
}

}  // namespace
}  // namespace titan
