#include "titan/job/data_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "titan/base/error.h"
#include "titan/job/job.h"

namespace titan {
namespace {

/// `count` × `each`, or the largest number if that is larger.
int64_t product(int64_t count, int64_t each) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return count > kMost / each ? kMost : count * each;
}

MegatronOrderRequest order_of_part(const JobConfig& config, const BatchPlan& plan) {
  MegatronOrderRequest request;
  request.sequence_length = plan.sequence_length;
  request.seed = static_cast<uint32_t>(config.data.megatron_seed);
  return request;
}

Problem empty_share(const JobConfig& config, const Origins& origins, const char* reader, const char* remedy) {
  return origins.problem(
      "data.megatron_split",
      fmt::format("data.megatron_split = \"{}\" leaves nothing for {}", config.data.megatron_split, reader), remedy);
}

}  // namespace

bool reads_in_megatron_order(const JobConfig& config) { return config.data.order == "megatron"; }

MegatronOrderRequest make_training_order(const JobConfig& config, const MeshPlace& place) {
  const BatchPlan plan = make_batch_plan(config, place);
  MegatronOrderRequest request = order_of_part(config, plan);
  request.part = parse_megatron_split(config.data.megatron_split)[0];
  request.subject = "the training part of " + config.training.dataset_path.value_or("");
  request.samples = product(std::max<int64_t>(1, config.training.steps), plan.global_batch());
  return request;
}

MegatronOrderRequest make_validation_order(const JobConfig& config, const MeshPlace& place, bool is_training_file) {
  const BatchPlan plan = make_validation_plan(config, place);
  MegatronOrderRequest request = order_of_part(config, plan);
  request.subject = config.validation.dataset_path.value_or("");
  if (is_training_file) {
    request.part = parse_megatron_split(config.data.megatron_split)[1];
    request.subject = "the validation part of " + request.subject;
  }
  request.section = "validation";
  if (config.validation.steps < 0) return request;
  const int64_t validations = config.training.steps / config.validation.freq + 1;
  request.samples = product(product(validations, config.validation.steps), plan.global_batch());
  return request;
}

void check_data_order(const JobConfig& config, const Origins& origins, std::vector<Problem>& problems) {
  if (!reads_in_megatron_order(config)) return;
  const auto refuse = [&](bool given, const char* key, const std::string& what, const char* remedy) {
    if (!given) return;
    problems.push_back(
        origins.problem(key, fmt::format("{} does not go with data.order = \"megatron\"", what), remedy));
  };
  const std::string& dataset = config.training.dataset;
  refuse(dataset == "mixture", "training.dataset", "training.dataset = \"mixture\" (a blend)",
         "name one .bin file of Megatron-LM in training.dataset_path, or leave data.order at \"documents\"");
  refuse(dataset == "chat" || dataset == "nanogpt", "training.dataset",
         fmt::format("training.dataset = \"{}\"", dataset),
         "it reads one .bin file of Megatron-LM; leave data.order at \"documents\"");
  refuse(config.data.shuffle, "data.shuffle", "data.shuffle = true", "this order is a shuffled one; leave it out");
  refuse(config.data.split == "upstream", "data.split", "data.split = \"upstream\"", "leave data.split at \"global\"");
  refuse(origins.is_set("data.packing"), "data.packing", fmt::format("data.packing = \"{}\"", config.data.packing),
         "its samples begin at every training.seq_len-th token; leave data.packing out");
  try {
    if (!parse_megatron_split(config.data.megatron_split)[0]) {
      problems.push_back(
          empty_share(config, origins, "training", "give the first share, training's, a number above zero"));
    }
  } catch (const Error& error) {
    problems.push_back(origins.problem("data.megatron_split", fmt::format("data.megatron_split: {}", error.what()),
                                       "give up to three shares, such as \"969, 30, 1\""));
  }
}

std::vector<Problem> check_validation_share(const JobConfig& config, const Origins& origins) {
  if (!reads_in_megatron_order(config)) return {};
  try {
    if (parse_megatron_split(config.data.megatron_split)[1]) return {};
  } catch (const Error&) {
    return {};  // check_data_order reports it
  }
  return {empty_share(config, origins, "validation, which reads training's file",
                      "give the second share a number above zero, or name another file in validation.dataset_path")};
}

}  // namespace titan
