#include <gtest/gtest.h>

#include "support/model.h"
#include "support/module_tree.h"
#include "titan/base/error.h"
#include "titan/model/model.h"

namespace titan {
namespace {

std::vector<std::string> tree_names(const Model& model) {
  std::vector<std::string> names;
  for (const auto& item : module_tree(model)->named_parameters()) names.push_back(item.key());
  return names;
}

// torchtitan, in registration order.
std::vector<std::string> expected_names(int64_t layers, bool tied, bool norms) {
  std::vector<std::string> names{"tok_embeddings.weight"};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    for (const char* suffix : {"attention.wq", "attention.wk", "attention.wv", "attention.wo", "feed_forward.w1",
                               "feed_forward.w2", "feed_forward.w3"}) {
      names.push_back(prefix + suffix + ".weight");
    }
    if (norms) {
      names.push_back(prefix + "attention_norm.weight");
      names.push_back(prefix + "ffn_norm.weight");
    }
  }
  if (norms) names.push_back("norm.weight");
  if (!tied) names.push_back("output.weight");
  return names;
}

TEST(ParameterNames, AreTorchtitansInItsOrderInTheTreeAndInTheHandles) {
  for (const std::string name : {"llama2", "llama3", "llama3_1", "llama3_2"}) {
    for (NormType norm : {NormType::rmsnorm, NormType::np_layernorm}) {
      ModelRequest request = small_request(name);
      request.model.norm_type = norm;
      request.model.override_sizes.n_layers = 11;  // layers.10 comes after layers.9, not after layers.1
      const auto model = find_model_family(name)->build(request, {});
      const auto expected = expected_names(11, name == "llama3_2", norm == NormType::rmsnorm);
      EXPECT_EQ(tree_names(*model), expected);
      std::vector<std::string> handles;
      for (const auto& parameter : model->parameter_handles()) handles.push_back(parameter->name());
      EXPECT_EQ(handles, expected);
    }
  }
}

TEST(ParameterNames, ShapesAreOutByIn) {
  const auto model = find_model_family("llama3")->build(small_request(), {});
  auto shape = [&](const char* name) { return model->parameter(name).spec().shape; };
  EXPECT_EQ(shape("tok_embeddings.weight"), (std::vector<int64_t>{59, 24}));
  EXPECT_EQ(shape("layers.2.attention.wq.weight"), (std::vector<int64_t>{24, 24}));
  EXPECT_EQ(shape("layers.2.attention.wk.weight"), (std::vector<int64_t>{12, 24}));
  EXPECT_EQ(shape("layers.2.attention.wv.weight"), (std::vector<int64_t>{12, 24}));
  EXPECT_EQ(shape("layers.2.attention.wo.weight"), (std::vector<int64_t>{24, 24}));
  EXPECT_EQ(shape("layers.2.feed_forward.w1.weight"), (std::vector<int64_t>{64, 24}));
  EXPECT_EQ(shape("layers.2.feed_forward.w2.weight"), (std::vector<int64_t>{24, 64}));
  EXPECT_EQ(shape("layers.2.feed_forward.w3.weight"), (std::vector<int64_t>{64, 24}));
  EXPECT_EQ(shape("layers.2.ffn_norm.weight"), (std::vector<int64_t>{24}));
  EXPECT_EQ(shape("output.weight"), (std::vector<int64_t>{59, 24}));
}

TEST(ParameterNames, TheTreeShowsTheMastersOnceTheyAreThere) {
  SmallModel small(small_request());
  for (const auto& item : module_tree(*small.model)->named_parameters()) {
    EXPECT_TRUE(item.value().is_same(small.model->parameter(item.key()).master)) << item.key();
  }
}

TEST(ParameterNames, AnUnknownNameIsABugThatIsNamed) {
  const auto model = find_model_family("llama3")->build(small_request(), {});
  EXPECT_THROW(model->parameter("lm_head.weight"), InvariantError);
}

}  // namespace
}  // namespace titan
