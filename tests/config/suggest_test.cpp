#include <gtest/gtest.h>

#include "mutants.h"
#include "support.h"
#include "support/random_sequence.h"

namespace titan {
namespace {

/// Every spelling there is, current and former.
std::vector<std::string> all_keys(const Schema& schema) {
  std::vector<std::string> keys;
  for (const Option& option : schema.options()) keys.push_back(option.key);
  for (const Alias& alias : schema.aliases()) keys.push_back(alias.key);
  return keys;
}

std::string target_of(const Schema& schema, const std::string& key) {
  const Alias* alias = schema.find_alias(key);
  return alias != nullptr ? alias->target : key;
}

TEST(Suggestions, at_least_95_of_100_mistyped_keys_get_the_right_first_suggestion) {
  Schema schema;
  std::vector<std::string> keys = all_keys(schema);
  PhiloxSequence random(name_key("typos"));
  int tried = 0;
  int right = 0;
  for (int round = 0; round < 16; ++round) {
    for (const std::string& key : keys) {
      size_t leaf = key.rfind('.') + 1;
      std::string typed = key.substr(0, leaf) + detail::slip(key.substr(leaf), random);
      if (schema.find(typed) != nullptr || schema.find_alias(typed) != nullptr) continue;
      std::vector<std::string> close = schema.suggest(typed, 1);
      ++tried;
      right += !close.empty() && target_of(schema, close[0]) == target_of(schema, key) ? 1 : 0;
    }
  }
  EXPECT_GT(tried, 3000);
  EXPECT_GE(right, tried * 95 / 100) << right << " of " << tried;
  RecordProperty("right_of_10000", right * 10000 / tried);
}

TEST(Suggestions, at_least_95_of_100_slips_anywhere_in_a_key_are_recognised_too) {
  Schema schema;
  PhiloxSequence random(name_key("typos anywhere"));
  int tried = 0;
  int right = 0;
  for (int round = 0; round < 6; ++round) {
    for (const std::string& key : all_keys(schema)) {
      std::string typed = detail::slip(key, random);
      if (schema.find(typed) != nullptr || schema.find_alias(typed) != nullptr) continue;
      std::vector<std::string> close = schema.suggest(typed, 1);
      ++tried;
      right += !close.empty() && target_of(schema, close[0]) == target_of(schema, key) ? 1 : 0;
    }
  }
  EXPECT_GT(tried, 1000);
  EXPECT_GE(right, tried * 95 / 100) << right << " of " << tried;
}

TEST(Suggestions, a_right_name_in_a_wrong_section_or_in_none_is_sent_to_its_own) {
  for (auto [typed, meant] :
       {std::pair("model.eps", "optimizer.eps"), std::pair("optimizer.warmup_steps", "lr_scheduler.warmup_steps"),
        std::pair("training.dim", "model.override.dim")}) {
    EXPECT_EQ(Schema().suggest(typed, 1), std::vector<std::string>{meant}) << typed;
  }
}

TEST(Suggestions, a_mistyped_name_without_its_section_is_recognised) {
  for (auto [typed, meant] : {std::pair("lrr", "optimizer.lr"), std::pair("seq_lenn", "training.seq_len"),
                              std::pair("dump_foldr", "job.dump_folder")}) {
    EXPECT_EQ(Schema().suggest(typed, 1), std::vector<std::string>{meant}) << typed;
  }
}

TEST(Suggestions, names_of_other_programs_are_answered_with_the_option_that_does_the_same) {
  for (auto [typed, meant] :
       {std::pair("model.dtype", "training.dtype"), std::pair("training.epochs", "training.steps"),
        std::pair("training.gradient_accumulation_steps", "training.global_batch_size"),
        std::pair("optimizer.grad_clip", "training.max_norm"), std::pair("max_grad_norm", "training.max_norm"),
        std::pair("checkpoint.last_save_in_safetensors_format", "checkpoint.last_save_in_hf"),
        std::pair("parallelism.tp", "parallelism.tensor_parallel_degree"),
        std::pair("parallelism.dp_shard", "parallelism.data_parallel_shard_degree"),
        std::pair("parallelism.dp_replicate", "parallelism.data_parallel_replicate_degree"),
        std::pair("lr_scheduler.type", "lr_scheduler.decay_type")}) {
    EXPECT_EQ(Schema().suggest(typed, 1), std::vector<std::string>{meant}) << typed;
  }
}

TEST(Suggestions, nonsense_gets_none) {
  for (const char* typed : {"quite.something_else_entirely", "xyz"}) {
    EXPECT_EQ(Schema().suggest(typed), std::vector<std::string>()) << typed;
  }
}

}  // namespace
}  // namespace titan
