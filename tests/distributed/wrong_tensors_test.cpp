// Functions of titan/distributed refuse wrong tensors at their entry.
#include "support/wrong_tensors.h"

#include "titan/distributed/communicator.h"

namespace titan {
namespace {

using test::bf16, test::elsewhere, test::fp32;

/// Rank 1 of 3.
struct RankFixture {
  std::unique_ptr<Communicator> ranks = make_fake_communicator("fsdp_gather", 1, 3);
};

using WrongCall = test::WrongCall<RankFixture>;
using F = RankFixture;
using Tensors = std::vector<at::Tensor>;

at::Tensor strided() { return fp32({3, 2}).t(); }

std::vector<WrongCall> collectives() {
  const auto gather = [](const Tensors& outputs, const Tensors& inputs) {
    return [=](F& f) { (void)f.ranks->all_gather(outputs, inputs); };
  };
  const auto scatter = [](const Tensors& outputs, const Tensors& inputs) {
    return [=](F& f) { (void)f.ranks->reduce_scatter(outputs, inputs); };
  };
  const auto sum = [](const Tensors& tensors) { return [=](F& f) { (void)f.ranks->all_reduce(tensors); }; };
  return {
      {"all_gather",
       "room for two of three ranks",
       gather({fp32({4, 5})}, {fp32({2, 5})}),
       {"fsdp_gather", "[4, 5]", "[2, 5]"}},
      {"all_gather", "as many elements of other rows", gather({fp32({6, 5})}, {fp32({5, 2})}), {"[6, 5]", "[5, 2]"}},
      {"all_gather", "an output too few", gather({fp32({6})}, {fp32({2}), fp32({2})}), {"[6]", "[2]"}},
      {"all_gather", "an output in bf16", gather({bf16({6})}, {fp32({2})}), {"BFloat16 [6]", "Float [2]"}},
      {"all_gather", "tensors of two dtypes", gather({fp32({6}), bf16({6})}, {fp32({2}), bf16({2})}), {"BFloat16 [6]"}},
      {"all_gather", "an input on another device", gather({fp32({6})}, {elsewhere({2})}), {"on meta", "on cpu"}},
      {"all_gather", "strided rows", gather({fp32({6, 3})}, {strided()}), {"[2, 3]", "strides [1, 2]"}},
      {"all_gather", "no input", gather({fp32({6})}, {at::Tensor()}), {"undefined"}},
      {"reduce_scatter",
       "parts of two ranks",
       scatter({fp32({2, 5})}, {fp32({4, 5})}),
       {"fsdp_gather", "[2, 5]", "[4, 5]"}},
      {"reduce_scatter", "a sum in bf16", scatter({bf16({2})}, {fp32({6})}), {"BFloat16 [2]", "Float [6]"}},
      {"reduce_scatter", "a strided output", scatter({strided()}, {fp32({6, 3})}), {"strides [1, 2]"}},
      {"reduce_scatter", "an output on another device", scatter({elsewhere({2})}, {fp32({6})}), {"on meta"}},
      {"all_reduce", "nothing", sum({}), {"fsdp_gather"}},
      {"all_reduce", "an undefined tensor", sum({fp32({2}), {}}), {"Float [2]", "undefined"}},
      {"all_reduce", "tensors of two dtypes", sum({fp32({2}), bf16({3})}), {"Float [2]", "BFloat16 [3]"}},
      {"all_reduce", "tensors on two devices", sum({fp32({2}), elsewhere({3})}), {"on cpu", "on meta"}},
      {"all_reduce", "a strided tensor", sum({strided()}), {"strides [1, 2]"}},
  };
}

std::vector<WrongCall> messages() {
  const auto transfer = [](const std::vector<Message>& receives, const std::vector<Message>& sends) {
    return [=](F& f) { (void)f.ranks->transfer(receives, sends); };
  };
  const auto permute = [](const Tensors& outputs, const Tensors& inputs) {
    return [=](F& f) { (void)f.ranks->permute(outputs, inputs, 2, 0); };
  };
  return {
      {"transfer",
       "an undefined tensor to send",
       transfer({}, {{2, {at::Tensor()}}}),
       {"fsdp_gather", "2", "undefined"}},
      {"transfer",
       "a message of two dtypes",
       transfer({{0, {fp32({2}), bf16({2})}}}, {}),
       {"Float [2]", "BFloat16 [2]"}},
      {"transfer", "a message without a tensor", transfer({{0, {}}}, {}), {"fsdp_gather", "0"}},
      {"transfer", "strided columns to send", transfer({}, {{2, {strided()}}}), {"[2, 3]", "strides [1, 2]"}},
      {"transfer", "strided columns to receive", transfer({{2, {strided()}}}, {}), {"[2, 3]", "strides [1, 2]"}},
      {"transfer", "a message to itself", transfer({}, {{1, {fp32({2})}}}), {"fsdp_gather", "1"}},
      {"permute", "nothing to send", permute({fp32({2})}, {}), {"fsdp_gather", "2", "0"}},
      {"permute", "a message on two devices", permute({fp32({2}), elsewhere({2})}, {fp32({2})}), {"on meta"}},
  };
}

std::vector<WrongCall> flat_messages() {
  return {
      {"flattened", "no tensor", [](F&) { flattened({}); }, {}},
      {"flattened",
       "tensors of two dtypes",
       [](F&) {
         flattened({fp32({2}), bf16({3})});
       },
       {"Float [2]", "BFloat16 [3]"}},
      {"pack",
       "a message too short",
       [](F&) {
         pack({fp32({2}), fp32({3})}, fp32({4}));
       },
       {"Float [4]", "[2]", "[3]"}},
      {"pack", "a message in bf16", [](F&) { pack({fp32({2})}, bf16({2})); }, {"BFloat16 [2]", "Float [2]"}},
      {"room_for",
       "an undefined tensor",
       [](F&) {
         room_for({fp32({2}), {}});
       },
       {"undefined"}},
      {"unflatten",
       "a message with two dimensions",
       [](F&) {
         unflatten(fp32({2, 3}), {fp32({6})});
       },
       {"[2, 3]"}},
      {"unflatten", "a message on another device", [](F&) { unflatten(elsewhere({6}), {fp32({6})}); }, {"on meta"}},
      {"unpack_rows",
       "rows of other lengths",
       [](F&) {
         unpack_rows(fp32({3, 4}), {fp32({6})});
       },
       {"[3, 4]", "[6]"}},
      {"unpack_rows",
       "outputs in bf16",
       [](F&) {
         unpack_rows(fp32({3, 2}), {bf16({6})});
       },
       {"BFloat16 [6]"}},
      {"pack_rows",
       "rows that the ranks do not divide",
       [](F&) {
         pack_rows({fp32({4}), fp32({5})}, 3);
       },
       {"3", "[4]", "[5]"}},
      {"pack_rows", "strided rows", [](F&) { pack_rows({strided()}, 2); }, {"strides [1, 2]"}},
  };
}

class WrongTensorsOfDistributed : public ::testing::TestWithParam<WrongCall> {};
TEST_P(WrongTensorsOfDistributed, AreABugThatIsNamedWithTheValues) { test::expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Collectives, WrongTensorsOfDistributed, ::testing::ValuesIn(collectives()));
INSTANTIATE_TEST_SUITE_P(Messages, WrongTensorsOfDistributed, ::testing::ValuesIn(messages()));
INSTANTIATE_TEST_SUITE_P(FlatMessages, WrongTensorsOfDistributed, ::testing::ValuesIn(flat_messages()));

}  // namespace
}  // namespace titan
