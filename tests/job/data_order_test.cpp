#include "titan/job/data_order.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/config_problems.h"
#include "support/job.h"

namespace titan {
namespace {

std::vector<std::string> with(std::vector<std::string> words) {
  words.insert(words.begin(), {"--training.dataset=text", "--training.dataset_path=corpus_text_document",
                               "--data.order=megatron", "--training.seq_len=64", "--training.steps=100"});
  return words;
}

std::string problems_of(const std::string& toml) {
  return config_problems({}, "[training]\ndataset = \"text\"\ndataset_path = \"c.bin\"\n" + toml);
}

TEST(DataOrder, TrainingAsksForStepsTimesGlobalBatchOfTheFirstPart) {
  const MeshPlace two{DeviceMesh({1, 1, 2, 1, 1}, 2), 1};
  const JobConfig config = job_config(with({"--training.local_batch_size=4", "--training.global_batch_size=16"}));
  for (const MegatronOrderRequest& request : {make_training_order(config, {}), make_training_order(config, two)}) {
    EXPECT_EQ(request.samples, 1600);
    EXPECT_EQ(request.sequence_length, 64);
    EXPECT_EQ(request.seed, 1234u);
    EXPECT_EQ(request.part, FilePart({0.0, 0.969}));
  }
  const JobConfig per_rank =
      job_config(with({"--training.local_batch_size=4", "--data.megatron_split=1", "--data.megatron_seed=4294967295"}));
  EXPECT_EQ(make_training_order(per_rank, two).samples, 800) << "a batch that grows with the ranks";
  EXPECT_EQ(make_training_order(per_rank, two).seed, 4294967295u);
  EXPECT_EQ(make_training_order(per_rank, two).part, FilePart({0.0, 1.0}));
  EXPECT_EQ(make_training_order(
                job_config(with({"--training.steps=4611686018427387904", "--training.local_batch_size=4"})), {})
                .samples,
            std::numeric_limits<int64_t>::max());
}

TEST(DataOrder, ValidationReadsTheSecondPartOfTrainingsFileAndAllOfAnother) {
  const std::vector<std::string> words{"--validation.enable", "--validation.dataset=text", "--validation.freq=30",
                                       "--validation.local_batch_size=2"};
  const auto order_for = [&](bool is_training_file, const std::string& steps = "5") {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--validation.dataset_path=a.bin", "--validation.steps=" + steps});
    return make_validation_order(job_config(with(all)), {}, is_training_file);
  };
  EXPECT_EQ(order_for(true).part, FilePart({0.969, 0.969 + 0.03}));
  EXPECT_EQ(order_for(true).samples, (100 / 30 + 1) * 5 * 2);
  EXPECT_EQ(order_for(true, "-1").samples, std::nullopt);
  EXPECT_EQ(order_for(false).part, FilePart({0.0, 1.0}));
}

TEST(DataOrder, WhatContradictsItIsRefusedAtItsPlace) {
  EXPECT_EQ(problems_of("[data]\norder = \"megatron\"\n"), "");
  EXPECT_EQ(
      problems_of("[data]\norder = \"megatron\"\nshuffle = true\n"),
      "job.toml:6:11: data.shuffle = true does not go with data.order = \"megatron\"; this order is a shuffled one; "
      "leave it out\n");
  EXPECT_EQ(problems_of("[data]\norder = \"megatron\"\nsplit = \"upstream\"\n"),
            "job.toml:6:9: data.split = \"upstream\" does not go with data.order = \"megatron\"; leave data.split at "
            "\"global\"\n");
  EXPECT_EQ(
      problems_of("[data]\norder = \"megatron\"\npacking = \"upstream\"\n"),
      "job.toml:6:11: data.packing = \"upstream\" does not go with data.order = \"megatron\"; its samples begin at "
      "every training.seq_len-th token; leave data.packing out\n");
  EXPECT_EQ(
      config_problems({},
                      "[training]\ndataset = \"mixture\"\n[data]\norder = \"megatron\"\n[[data.mixture]]\n"
                      "path = \"a.bin\"\nweight = 1\n"),
      "job.toml:2:11: training.dataset = \"mixture\" (a blend) does not go with data.order = \"megatron\"; name one "
      ".bin file of Megatron-LM in training.dataset_path, or leave data.order at \"documents\"\n");
  EXPECT_EQ(
      problems_of("[data]\norder = \"megatron\"\nmegatron_split = \"9,-1\"\n"),
      "job.toml:6:18: data.megatron_split: the split \"9,-1\" holds \"-1\"; give up to three shares, such as \"969, "
      "30, 1\"\n");
  EXPECT_EQ(
      problems_of("[data]\norder = \"megatron\"\nmegatron_split = \"0,1\"\n"),
      "job.toml:6:18: data.megatron_split = \"0,1\" leaves nothing for training; give the first share, training's, "
      "a number above zero\n");
}

TEST(DataOrder, ASplitThatLeavesNothingForValidationIsRefusedWhereItReadsTrainingsFile) {
  const auto problems_of_split = [](const std::string& words) {
    const std::string toml = "[training]\ndataset = \"text\"\ndataset_path = \"c\"\n[data]\n" + words;
    LoadedConfig loaded = load_config_text(Schema(), toml, "job.toml", {});
    return format_problems(check_validation_share(loaded.config, loaded.origins));
  };
  EXPECT_EQ(
      problems_of_split("order = \"megatron\"\nmegatron_split = \"1\"\n"),
      "job.toml:6:18: data.megatron_split = \"1\" leaves nothing for validation, which reads training's file; give "
      "the second share a number above zero, or name another file in validation.dataset_path\n");
  EXPECT_EQ(problems_of_split("order = \"megatron\"\nmegatron_split = \"9,1\"\n"), "");
  EXPECT_EQ(problems_of_split("order = \"megatron\"\nmegatron_split = \"9,x\"\n"), "") << "check_data_order reports it";
  EXPECT_EQ(problems_of_split(""), "") << "documents in their own order have no split";
}

}  // namespace
}  // namespace titan
