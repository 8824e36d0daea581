#include "titan/estimate/memory_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "support/job.h"
#include "titan/base/error.h"
#include "titan/job/pipeline_job.h"

namespace titan {
namespace {

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

class LossChunks : public ::testing::Test {
 protected:
  /// Llama 3.1 8B on `gib` GiB, with what `more` says.
  static int64_t chosen(double gib, const std::vector<std::string>& more = {}, int64_t world = 1) {
    std::vector<std::string> words{"--model.name=llama3_1",
                                   "--model.flavor=8B",
                                   "--training.dtype=bfloat16",
                                   "--optimizer.state_dtype=bfloat16",
                                   "--training.seq_len=8192",
                                   "--training.local_batch_size=1",
                                   "--training.loss_chunks=0",
                                   "--activation_checkpoint.mode=full",
                                   "--model.override.vocab_size=128256"};
    words.insert(words.end(), more.begin(), more.end());
    const JobConfig config = job_config(words);
    const std::optional<int64_t> room = gib > 0 ? std::optional(static_cast<int64_t>(gib * kGiB)) : std::nullopt;
    return choose_loss_chunks(config, describe_model(config, 128256), make_mesh(config, world), room);
  }
};

TEST_F(LossChunks, AreTheFewestThatFitIntoTheMemory) {
  EXPECT_EQ(chosen(138), 1);
  EXPECT_EQ(chosen(40), 8) << "nothing fits";
  int64_t before = 8;
  std::set<int64_t> seen;
  for (double gib = 80; gib < 120; gib += 0.25) {
    const int64_t now = chosen(gib);
    EXPECT_LE(now, before) << gib;
    seen.insert(before = now);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{1, 2, 4, 8}));
}

TEST_F(LossChunks, FitByThePlanThatTheRunWillMake) {
  const double margin = 1.1;
  for (double gib = 80; gib < 120; gib += 4) {
    const int64_t chunks = chosen(gib);
    const JobConfig config = job_config(
        {"--model.name=llama3_1", "--model.flavor=8B", "--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16",
         "--training.seq_len=8192", "--training.local_batch_size=1", "--activation_checkpoint.mode=full",
         "--model.override.vocab_size=128256", "--training.loss_chunks=" + std::to_string(chunks)});
    const MemoryQuestion question{config, {make_mesh(config, 1), 0}, 128256, /*device_only=*/true};
    if (chunks == 8) continue;
    EXPECT_LE(margin * static_cast<double>(predicted_bytes(question)), gib * kGiB) << gib;
  }
}

TEST_F(LossChunks, AreWhatTheConfigSaysIfItSaysANumber) {
  for (const int64_t number : {1, 3, 8, 40}) {
    EXPECT_EQ(chosen(138, {"--training.loss_chunks=" + std::to_string(number)}), number);
  }
}

TEST_F(LossChunks, AreEightWhereTheMemoryIsUnknown) { EXPECT_EQ(chosen(0), 8); }

TEST_F(LossChunks, HoldAtMostSoManyLogitsAs32BitsCount) {
  EXPECT_EQ(chosen(1000, {"--training.local_batch_size=2"}), 1) << "2,101,346,304 logits";
  EXPECT_EQ(chosen(1000, {"--training.local_batch_size=4"}), 2);
  EXPECT_EQ(chosen(1000, {"--training.local_batch_size=64"}), 8) << "no more than without memory to spare";
}

TEST_F(LossChunks, CountTheLogitsOfAValidation) {
  const std::vector<std::string> words{"--validation.enable", "--validation.seq_len=8192",
                                       "--validation.local_batch_size=4"};
  EXPECT_EQ(chosen(1000, words), 2);
  EXPECT_EQ(chosen(1000, {words.begin() + 1, words.end()}), 1) << "there is none";
}

TEST_F(LossChunks, FitOnEveryStageOfAPipeline) {
  const std::vector<std::string> stages{"--parallelism.pipeline_parallel_degree=2",
                                        "--parallelism.pipeline_parallel_schedule=GPipe",
                                        "--training.local_batch_size=2"};
  EXPECT_EQ(chosen(100, stages, 2), 1);
  EXPECT_EQ(chosen(20, stages, 2), 8);
}

TEST_F(SettingsThatFit, OfferMorePartsOfTheLogitsThanThePlanWouldChoose) {
  const JobConfig config = job({"--training.loss_chunks=0", "--model.override.vocab_size=65536"});
  const int64_t now = predicted_bytes(question(config, 0));
  const std::vector<MemorySetting> settings = settings_that_fit(question(config, now * 3 / 2 - 1), 20);
  EXPECT_TRUE(std::any_of(settings.begin(), settings.end(),
                          [](const MemorySetting& setting) { return setting.words == "training.loss_chunks = 32"; }));
}

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
  asked.ran_out = Phase::training;
  const int64_t in_steps = predicted_bytes(asked);
  ASSERT_LT(in_steps, now / 2);
  asked.ran_out = Phase::validation;
  EXPECT_EQ(predicted_bytes(asked), now);
  asked.allowed = now * 3 / 4;
  for (const std::optional<Phase> ran_out : {std::optional<Phase>(), std::optional(Phase::validation)}) {
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
  // The available memory is unknown: a fifth less.
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
  asked.ran_out = Phase::validation;
  MemoryQuestion asked_of_least = question(least, 0);
  asked_of_least.ran_out = Phase::validation;
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
  asked.ran_out = Phase::validation;
  const auto taken_by = [&](int64_t samples) {
    JobConfig other = config;
    other.validation.local_batch_size = samples;
    MemoryQuestion its = question(other, 0);
    its.ran_out = Phase::validation;
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
  asked.ran_out = Phase::training;
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
