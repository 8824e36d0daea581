// Ring attention of several ranks, threads over Gloo, against the masked softmax of the whole sequence in float64.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <functional>
#include <thread>

#include "support/masked_softmax.h"
#include "support/operation.h"
#include "titan/distributed/mesh_communicators.h"
#include "titan/ops/context_parallel.h"

namespace titan {
namespace {

struct RingCase {
  std::string name;
  SequenceSplit split;
  Rotation rotation;
  int64_t samples, length, query_heads, key_heads, head_dim;
  std::vector<DocumentStarts> documents = {};
  at::ScalarType type = at::kFloat;
};

void PrintTo(const RingCase& test, std::ostream* out) { *out << test.name; }

struct Whole {
  explicit Whole(const RingCase& c)
      : q(normal({c.samples, c.length, c.query_heads, c.head_dim}, 1, c.type)),
        k(normal({c.samples, c.length, c.key_heads, c.head_dim}, 2, c.type)),
        v(normal({c.samples, c.length, c.key_heads, c.head_dim}, 3, c.type)),
        d(normal(q.sizes(), 4, c.type)) {}
  at::Tensor q, k, v, d;
};

/// A rank's places of [B, T, …].
at::Tensor share_of(const at::Tensor& whole, const SequenceSplit& split, int64_t rank) {
  std::vector<at::Tensor> parts;
  for (const PlaceRange& places : split.places(rank, whole.size(1))) {
    parts.push_back(whole.narrow(1, places.begin, places.end - places.begin));
  }
  return at::cat(parts, 1);
}

struct RankOutcome {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
  TrafficTable traffic;
  std::vector<std::string> trace;
};

/// Runs `work` as every rank of the case's ring.
std::vector<RankOutcome> as_ranks(const RingCase& test,
                                  const std::function<RankOutcome(std::shared_ptr<ContextParallel>)>& work) {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);  // the library's recorder is made for one rank a process
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<RankOutcome> outcomes(static_cast<size_t>(test.split.ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < test.split.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      CommunicatorRequest request{
          .name = "cp", .instance = "/0", .interface = "lo", .rank = rank, .size = test.split.ranks};
      request.timeout = std::chrono::seconds(60);
      try {
        auto context = std::make_shared<ContextParallel>();
        context->communicator = make_gloo_communicator(store, request);
        context->split = test.split;
        context->rotation = test.rotation;
        outcomes[static_cast<size_t>(rank)] = work(context);
      } catch (const std::exception& error) {
        ADD_FAILURE() << test.name << ", rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

RankOutcome attend_in(UnitContext& unit, const RingCase& test, const Whole& whole,
                      const std::shared_ptr<ContextParallel>& context) {
  RankOutcome outcome;
  context->trace = [&](const char* what, int64_t source) {
    outcome.trace.push_back(std::string(what) + " " + std::to_string(source));
  };
  const int64_t rank = context->communicator->rank();
  auto mine = [&](const at::Tensor& tensor) { return share_of(tensor, test.split, rank); };
  const at::Tensor q = leaf(mine(whole.q)), k = leaf(mine(whole.k)), v = leaf(mine(whole.v));
  const auto core = make_attention_core(!test.documents.empty(), context);
  if (unit.recorder.checkpointed()) {
    unit.recorder.start(Recorder::Phase::first_run);
    at::NoGradGuard no_graph;
    core->forward(q, k, v, {test.documents}, unit);
    unit.recorder.start(Recorder::Phase::replay);
  }
  const at::Tensor output = core->forward(q, k, v, {test.documents}, unit);
  outcome.output = output.detach();
  outcome.gradients = backward({output}, {mine(whole.d)}, {q, k, v});
  outcome.traffic = context->communicator->traffic();
  return outcome;
}

std::vector<RankOutcome> attend(const RingCase& test) {
  const Whole whole(test);
  return as_ranks(test, [&](std::shared_ptr<ContextParallel> context) {
    PlainContext plain;
    return attend_in(plain.context, test, whole, context);
  });
}

class RingCases : public ::testing::TestWithParam<RingCase> {};

TEST_P(RingCases, OutputAndGradientsFollowTheMaskedFloat64SoftmaxOfTheWholeSequence) {
  const RingCase& test = GetParam();
  const Whole whole(test);
  const at::Tensor q = leaf(as_double(whole.q)), k = leaf(as_double(whole.k)), v = leaf(as_double(whole.v));
  const at::Tensor expected = masked_softmax(q, k, v, {test.documents});
  const auto gradients = backward({expected}, {as_double(whole.d)}, {q, k, v});
  const std::vector<RankOutcome> ranks = attend(test);
  ASSERT_FALSE(HasFailure());
  for (int64_t rank = 0; rank < test.split.ranks; ++rank) {
    const RankOutcome& mine = ranks[static_cast<size_t>(rank)];
    EXPECT_TRUE(near(mine.output, share_of(expected.detach(), test.split, rank), tolerance(test.type))) << rank;
    EXPECT_EQ(mine.output.scalar_type(), test.type);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(near(mine.gradients[i], share_of(gradients[i], test.split, rank), 2 * tolerance(test.type)))
          << "qkv"[i] << " of rank " << rank;
      EXPECT_EQ(mine.gradients[i].scalar_type(), test.type);
    }
  }
}

std::vector<RingCase> ring_cases() {
  std::vector<RingCase> cases;
  for (const LoadBalance balance : {LoadBalance::head_tail, LoadBalance::none}) {
    for (const Rotation rotation : {Rotation::all_gather, Rotation::all_to_all}) {
      for (int64_t ranks = 2; ranks <= 4; ++ranks) {
        const SequenceSplit split{ranks, balance};
        const std::string name =
            fmt::format("{} ranks, {}, {}", ranks, balance == LoadBalance::none ? "row" : "balanced",
                        rotation == Rotation::all_gather ? "gathered" : "handed on");
        const int64_t chunks = split.chunks();
        cases.push_back({name + ", smallest", split, rotation, 2, chunks, 2, 1, 8});
        cases.push_back({name + ", odd chunks", split, rotation, 1, chunks * 37, 4, 2, 16});
        const int64_t length = chunks * 9;
        const std::vector<DocumentStarts> documents{
            {0, 1, length / 3, length / 3 + 1, length - 2}, {0}, {0, length / 2}};
        cases.push_back({name + ", documents", split, rotation, 3, length, 4, 2, 8, documents});
        cases.push_back({name + ", bf16", split, rotation, 1, chunks * 20, 4, 1, 16, {}, at::kBFloat16});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(RingAttention, RingCases, ::testing::ValuesIn(ring_cases()));

TEST(RingAttention, BothRotationsGiveTheSameBits) {
  RingCase test{"bits", {3}, Rotation::all_gather, 2, 60, 4, 2, 16, {{0, 13, 31}, {0, 50}}};
  const std::vector<RankOutcome> gathered = attend(test);
  test.rotation = Rotation::all_to_all;
  const std::vector<RankOutcome> handed_on = attend(test);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(same_bits(handed_on[rank].output, gathered[rank].output));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(handed_on[rank].gradients[i], gathered[rank].gradients[i]));
  }
}

TEST(RingAttention, SendsKeyHeadsOnceAndGradientsInFp32) {
  const int64_t block = 2 * 1 * 16 * 2 * 8;  // keys and values of 16 local places, 2 of 8 heads
  const RingCase handed_on{"sent", {4}, Rotation::all_to_all, 1, 64, 8, 2, 8, {}, at::kBFloat16};
  for (const RankOutcome& rank : attend(handed_on)) {
    // Three hops forward, three and the gradients' four in backward.
    EXPECT_EQ(rank.traffic[static_cast<size_t>(Collective::permute)], (Traffic{10, block * (6 * 2 + 4 * 4)}));
    EXPECT_EQ(rank.traffic[static_cast<size_t>(Collective::all_gather)], Traffic{});
  }
  const RingCase gathered{"sent", {4}, Rotation::all_gather, 1, 64, 8, 2, 8, {}, at::kBFloat16};
  for (const RankOutcome& rank : attend(gathered)) {
    EXPECT_EQ(rank.traffic[static_cast<size_t>(Collective::all_gather)], (Traffic{2, 2 * 4 * block * 2}));
    EXPECT_EQ(rank.traffic[static_cast<size_t>(Collective::permute)], (Traffic{4, 4 * block * 4}));
  }
}

using Lines = std::vector<std::string>;

TEST(RingAttention, TheNextKeysAreOnTheirWayBeforeThePresentOnesAreUsed) {
  const RingCase handed_on{"trace", {3}, Rotation::all_to_all, 1, 12, 1, 1, 8};
  EXPECT_EQ(attend(handed_on)[1].trace,
            (Lines{"send 1", "attend 1", "wait 0", "send 0", "attend 0", "wait 2", "attend 2",  // forward
                   "send 1", "differentiate 1", "return 1", "wait 0", "send 0", "differentiate 0", "return 0", "wait 2",
                   "differentiate 2", "return 2"}));
  const RingCase gathered{"trace", {3}, Rotation::all_gather, 1, 12, 1, 1, 8};
  EXPECT_EQ(attend(gathered)[1].trace, (Lines{"send 1", "attend 1", "wait 0", "attend 0", "attend 2",  // forward
                                              "send 1", "differentiate 1", "return 1", "wait 0", "differentiate 0",
                                              "return 0", "differentiate 2", "return 2"}));
}

TEST(RingAttention, AKeptResultIsNotComputedAgainInTheReplay) {
  const RingCase test{"kept", {2}, Rotation::all_to_all, 1, 24, 4, 2, 8};
  const std::vector<RankOutcome> direct = attend(test);
  const Whole whole(test);
  const std::vector<RankOutcome> kept = as_ranks(test, [&](std::shared_ptr<ContextParallel> context) {
    ImmediateSink sink;
    UnitContext unit(UnitMode::train, RecomputePolicy::full().set(ResultKind::attention, 0, Keep::keep), sink);
    return attend_in(unit, test, whole, context);
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(kept[rank].trace, direct[rank].trace);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(kept[rank].gradients[i], direct[rank].gradients[i]));
  }
}

TEST(RingAttention, LargeScoresOfLaterBlocksNeitherOverflowNorLoseTheEarlierOnes) {
  RingCase test{"large", {2, LoadBalance::none}, Rotation::all_gather, 1, 64, 2, 1, 16};
  Whole whole(test);
  whole.q.mul_(60), whole.k.mul_(60);  // scores of several thousand
  const at::Tensor expected = masked_softmax(as_double(whole.q), as_double(whole.k), as_double(whole.v), {});
  const std::vector<RankOutcome> ranks = as_ranks(test, [&](std::shared_ptr<ContextParallel> context) {
    PlainContext plain;
    return attend_in(plain.context, test, whole, context);
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(near(ranks[static_cast<size_t>(rank)].output, share_of(expected, test.split, rank), 1e-3));
  }
}

TEST(RingAttention, OfOneRankIsThePlainCore) {
  const RingCase test{"one", {1}, Rotation::all_gather, 1, 20, 2, 2, 8};
  const Whole whole(test);
  PlainContext plain;
  EXPECT_TRUE(same_bits(make_attention_core(false, nullptr)->forward(whole.q, whole.k, whole.v, {}, plain.context),
                        make_sdpa_core(false)->forward(whole.q, whole.k, whole.v, {}, plain.context)));
}

}  // namespace
}  // namespace titan
