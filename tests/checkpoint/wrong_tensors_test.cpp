// Functions of titan/checkpoint refuse wrong tensors at their entry: before a byte is read or written.
#include "support/wrong_tensors.h"

#include "memory_source.h"
#include "memory_storage.h"
#include "states.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/safetensors.h"

namespace titan {
namespace {

using test::bf16, test::elsewhere, test::fp32, test::int64;

/// A file of one stored matrix [4, 3], and a checkpoint of one process.
struct WrongFixture {
  WrongFixture() {
    HashingWriter writer(storage, "blob");
    write_tensor_blob(writer, fp32({4, 3}));
    writer.finish();
    file = std::make_unique<CheckedReader>(storage, "blob", std::nullopt);
    stored = read_tensor_blob(*file, 0, file->size());
  }

  void read(const Box& part, const at::Tensor& into) { read_elements(*file, stored, part, into); }

  void load(const at::Tensor& into, const std::function<void(OpenCheckpoint&, const LoadTarget&)>& act) {
    for (const TestLayout& layout : test_layouts()) {
      if (layout.ranks != 1) continue;
      save_as_all_ranks(storage, {"root", 1, "run"}, layout, 1);
      OpenCheckpoint checkpoint(storage, std::filesystem::path("root") / step_folder(1), /*all_sizes=*/true);
      LoadTarget target = test_targets(layout, 0).front();
      target.into = into;
      return act(checkpoint, target);
    }
  }

  MemoryStorage storage;
  std::unique_ptr<CheckedReader> file;
  StoredElements stored;
  MemorySource source{
      {{"their.q", fp32({12, 5})}, {"w", fp32({4, 3}).to(at::kFloat8_e4m3fn)}, {"w_scale_inv", fp32({1, 1})}}};
};

using WrongCall = test::WrongCall<WrongFixture>;
using F = WrongFixture;

std::vector<WrongCall> calls_of_files() {
  return {
      {"TensorBytes",
       "a transposed tensor",
       [](F&) {
         TensorBytes bytes(fp32({2, 3}).t());
       },
       {"Float [3, 2] on cpu"}},
      {"TensorBytes", "a tensor elsewhere", [](F&) { TensorBytes bytes(elsewhere({2})); }, {"Float [2] on meta"}},
      {"TensorBytes", "nothing", [](F&) { TensorBytes bytes{at::Tensor()}; }, {"undefined"}},
      {"narrowed",
       "a box of rows alone",
       [](F&) {
         narrowed(fp32({4, 3}), {{0}, {2}});
       },
       {"[4, 3]", "[0] [2]"}},
      {"narrowed",
       "a box that ends outside",
       [](F&) {
         narrowed(fp32({4, 3}), {{3, 0}, {2, 3}});
       },
       {"[4, 3]", "[3, 0] [2, 3]"}},
      {"read_elements",
       "a target of another shape",
       [](F& f) {
         f.read({{0, 0}, {2, 3}}, fp32({3, 2}));
       },
       {"blob", "[3, 2]", "[2, 3]", "[4, 3]"}},
      {"read_elements",
       "a part that ends outside",
       [](F& f) {
         f.read({{3, 0}, {2, 3}}, fp32({2, 3}));
       },
       {"blob", "[3, 0] [2, 3] [4, 3]"}},
      {"write_safetensors",
       "nothing",
       [](F&) {
         write_safetensors("nowhere.safetensors", {{"loss", at::Tensor()}});
       },
       {"loss"}},
      {"local_part",
       "a shard of another dtype",
       [](F&) {
         local_part({{"w", at::kFloat, {2, 3}}, whole_everywhere({2, 3}), bf16({2, 3})}, {0, {{0, 0}, {2, 3}}});
       },
       {"w", "BFloat16 [2, 3]", "Float"}},
      {"written_part",
       "no shard",
       [](F&) {
         written_part({{"w", at::kFloat, {2, 3}}, whole_everywhere({2, 3}), {}}, {0, {{0, 0}, {2, 3}}});
       },
       {"w", "undefined", "[2, 3]"}},
      {"load",
       "a target of another shape",
       [](F& f) {
         f.load(fp32({1, 1, 7}), [](OpenCheckpoint& checkpoint, const LoadTarget& target) {
           checkpoint.load({&target, 1});
         });
       },
       {"[1, 1, 7]"}},
      {"load",
       "no target",
       [](F& f) {
         f.load({}, [](OpenCheckpoint& checkpoint, const LoadTarget& target) { checkpoint.load({&target, 1}); });
       },
       {"undefined"}},
  };
}

std::vector<WrongCall> calls_of_other_programs() {
  const ForeignTensor query{"their.q", "wq", {12, 5}, 3};
  return {
      {"pairs_from_halves",
       "rows of half a head",
       [](F&) {
         pairs_from_halves(fp32({6, 5}), 4);
       },
       {"[6, 5]", "4"}},
      {"halves_from_pairs", "a number", [](F&) { halves_from_pairs(fp32({}), 4); }, {"Float []", "4"}},
      {"read_parameter",
       "a target of other rows",
       [=](F& f) {
         read_parameter(f.source, query, {{0, 0}, {4, 5}}, fp32({5, 5}));
       },
       {"wq", "[5, 5]", "[4, 5]"}},
      {"read_parameter",
       "whole numbers",
       [=](F& f) {
         read_parameter(f.source, query, {{0, 0}, {4, 5}}, int64({4, 5}));
       },
       {"wq", "Long"}},
      {"BlockScaledWeights::read",
       "a target of other rows",
       [](F& f) {
         BlockScaledWeights(f.source, ScaleBlock{}).read("w", {{0, 0}, {2, 3}}, fp32({3}));
       },
       {"w", "[3] on", "[2, 3]"}},
      {"CheckpointSource::read",
       "a target of another shape",
       [](F& f) {
         f.load({}, [](OpenCheckpoint& checkpoint, const LoadTarget& target) {
           CheckpointSource weights(checkpoint);
           const auto& [name, tensor] = *weights.tensors().begin();
           weights.read(name, target.box, fp32({1, 1, 7}));
         });
       },
       {"[1, 1, 7]"}},
  };
}

class WrongTensorsOfCheckpoint : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfCheckpoint, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files, WrongTensorsOfCheckpoint, ::testing::ValuesIn(calls_of_files()));
INSTANTIATE_TEST_SUITE_P(OtherPrograms, WrongTensorsOfCheckpoint, ::testing::ValuesIn(calls_of_other_programs()));

}  // namespace
}  // namespace titan
