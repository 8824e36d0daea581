// Who writes what and who reads what from where: planner and reader alone, every rank in turn, no process group.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"

namespace titan {
namespace {

TestLayout layout_named(const std::string& name) {
  for (const TestLayout& layout : test_layouts()) {
    if (layout.name == name) return layout;
  }
  throw std::logic_error(name);
}

/// What each rank writes.
std::vector<int64_t> planned_bytes(const std::vector<StateTensor>& tensors, int64_t ranks) {
  std::vector<int64_t> bytes;
  for (const std::vector<PlannedWrite>& writes : plan_save(tensors, ranks)) {
    bytes.push_back(0);
    for (const PlannedWrite& write : writes) bytes.back() += tensors[write.tensor].tensor.bytes_of(write.box);
  }
  return bytes;
}

TEST(SavePlan, EveryElementIsWrittenOnceByARankThatHoldsIt) {
  for (const TestLayout& layout : test_layouts()) {
    const std::vector<StateTensor> tensors = test_tensors(layout);
    const SavePlan plan = plan_save(tensors, layout.ranks);
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      SavePlan own(plan.size());
      own[static_cast<size_t>(rank)] = plan[static_cast<size_t>(rank)];
      EXPECT_EQ(plan_save(tensors, layout.ranks, 1, 0, rank), own) << "what a rank plans of itself alone";
    }
    std::vector<at::Tensor> written;
    for (const StateTensor& one : tensors) written.push_back(at::zeros(one.tensor.shape, at::kInt));
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      for (const PlannedWrite& write : plan[static_cast<size_t>(rank)]) {
        EXPECT_EQ(tensors[write.tensor].box_of(rank), write.box) << layout.name;
        at::Tensor part = written[write.tensor];
        for (size_t d = 0; d < write.box.offset.size(); ++d) {
          part = part.narrow(static_cast<int64_t>(d), write.box.offset[d], write.box.extent[d]);
        }
        part.add_(1);
      }
    }
    for (size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_TRUE(written[t].eq(1).all().item<bool>()) << layout.name << " " << tensors[t].tensor.name;
    }
  }
}

TEST(SavePlan, ReplicatedBytesAreSharedOutEvenly) {
  // 16 equal tensors on 4 replicas: 4 each.
  std::vector<StateTensor> tensors;
  for (int i = 0; i < 16; ++i) {
    tensors.push_back({{"t" + std::to_string(i), at::kFloat, {5, 5}}, whole_everywhere({5, 5})});
  }
  EXPECT_EQ(planned_bytes(tensors, 4), std::vector<int64_t>(4, 4 * 100));
}

TEST(SavePlan, RanksThatMustWriteMoreOfTheirOwnWriteLessOfWhatIsShared) {
  std::vector<StateTensor> tensors{{{"only on rank 0", at::kFloat, {10}},
                                    [](int64_t rank) {
                                      return rank == 0 ? std::optional(Box{{0}, {10}}) : std::nullopt;
                                    }},
                                   {{"shared a", at::kFloat, {4}}, whole_everywhere({4})},
                                   {{"shared b", at::kFloat, {6}}, whole_everywhere({6})}};
  EXPECT_EQ(planned_bytes(tensors, 2), (std::vector<int64_t>{40, 40}));
}

TEST(SavePlan, NoRankOfAReplicatedLayoutWritesMuchMoreThanItsShare) {
  for (const char* name : {"ddp2", "hsdp2x2", "tp2", "tp4", "pp2xddp2xtp2"}) {
    const TestLayout layout = layout_named(name);
    const std::vector<StateTensor> tensors = test_tensors(layout);
    int64_t total = 0, largest = 0, most = 0;
    for (const int64_t bytes : planned_bytes(tensors, layout.ranks)) {
      total += bytes;
      most = std::max(most, bytes);
    }
    for (const StateTensor& one : tensors) {
      if (const auto box = one.box_of(0)) largest = std::max(largest, one.tensor.bytes_of(*box));
    }
    EXPECT_LE(most, total / layout.ranks + largest) << name;
  }
}

TEST(SavePlan, ARanksBytesAreCutIntoFilesOfConsecutiveWritesAndAboutEqualSize) {
  std::vector<StateTensor> tensors;
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t rows = 1 + i * 7 % 10;
    tensors.push_back({{"t" + std::to_string(i), at::kFloat, {rows, 25}}, whole_everywhere({rows, 25})});
  }
  const auto sizes = [&](int64_t most_files, int64_t least_file_bytes) {
    const SavePlan plan = plan_save(tensors, 1, most_files, least_file_bytes);
    std::vector<int64_t> bytes;
    size_t writes = 0;
    for (const std::span<const PlannedWrite> file : files_of(plan[0])) {
      int64_t of_file = 0;
      for (const PlannedWrite& write : file) {
        EXPECT_EQ(write.tensor, writes++);
        EXPECT_EQ(write.file, static_cast<int64_t>(bytes.size()));
        of_file += tensors[write.tensor].tensor.bytes_of(write.box);
      }
      bytes.push_back(of_file);
    }
    EXPECT_EQ(writes, tensors.size());
    return bytes;
  };
  const int64_t total = 220 * 25 * 4, largest = 10 * 25 * 4;
  EXPECT_EQ(sizes(1, 0), std::vector<int64_t>{total});
  EXPECT_EQ(sizes(4, total), std::vector<int64_t>{total});
  EXPECT_EQ(sizes(4, total / 2).size(), 2u);
  const std::vector<int64_t> four = sizes(4, 100);
  ASSERT_EQ(four.size(), 4u);
  for (const int64_t bytes : four) EXPECT_NEAR(bytes, total / 4, largest);
}

TEST(SavePlan, ATensorLargerThanAFilesShareHasOneFile) {
  const std::vector<StateTensor> tensors{{{"small", at::kFloat, {1}}, whole_everywhere({1})},
                                         {{"large", at::kFloat, {1000}}, whole_everywhere({1000})},
                                         {{"last", at::kFloat, {1}}, whole_everywhere({1})}};
  const SavePlan plan = plan_save(tensors, 1, /*most_files=*/4);
  ASSERT_EQ(files_of(plan[0]).size(), 3u);
  for (int64_t file = 0; file < 3; ++file) EXPECT_EQ(plan[0][static_cast<size_t>(file)].file, file);
}

TEST(SavePlan, BoxesThatLeaveAHoleOrMeetAreAnInvariantsError) {
  const auto halves = [](int64_t second_begin) {
    return [=](int64_t rank) {
      return std::optional(rank == 0 ? Box{{0}, {5}} : Box{{second_begin}, {10 - second_begin}});
    };
  };
  for (const int64_t begin : {4, 6}) {
    const std::vector<StateTensor> tensors{{{"w", at::kFloat, {10}}, halves(begin)}};
    EXPECT_THROW(plan_save(tensors, 2), InvariantError) << begin;
  }
  const std::vector<StateTensor> whole{{{"w", at::kFloat, {10}}, halves(5)}};
  EXPECT_EQ(plan_save(whole, 2)[1].size(), 1u);
}

CheckpointIndex one_tensor(const std::vector<Box>& boxes) {
  StoredTensor stored{{"w", at::kFloat, {6, 4}}, {}};
  int64_t offset = 0;
  for (const Box& box : boxes) {
    stored.chunks.push_back({box, {"__0_0.distcp", offset, 100}});
    offset += 100;
  }
  CheckpointIndex index;
  index.tensors["w"] = stored;
  return index;
}

TEST(LoadPlan, RegionsAreRelativeToChunkAndBox) {
  const CheckpointIndex index = one_tensor({{{0, 0}, {3, 4}}, {{3, 0}, {3, 4}}});
  const auto reads = plan_load(index, index.tensors.at("w").tensor, {{2, 1}, {3, 2}});
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_EQ(reads[0].in_chunk, (Box{{2, 1}, {1, 2}}));
  EXPECT_EQ(reads[0].in_target, (Box{{0, 0}, {1, 2}}));
  EXPECT_EQ(reads[1].in_chunk, (Box{{0, 1}, {2, 2}}));
  EXPECT_EQ(reads[1].in_target, (Box{{1, 0}, {2, 2}}));
  EXPECT_EQ(reads[1].place.offset, 100);
}

TEST(LoadPlan, ABoxOfNothingNeedsNothing) {
  const CheckpointIndex index = one_tensor({{{0, 0}, {6, 4}}});
  EXPECT_TRUE(plan_load(index, index.tensors.at("w").tensor, {{6, 0}, {0, 4}}).empty());
}

TEST(LoadPlan, AMissingNameAndAnotherShapeAreMismatchesThatNameTheTensor) {
  const CheckpointIndex index = one_tensor({{{0, 0}, {6, 4}}});
  const auto sentence = [&](const LogicalTensor& wanted) -> std::string {
    try {
      plan_load(index, wanted, {std::vector<int64_t>(wanted.shape.size(), 0), wanted.shape});
    } catch (const MismatchError& error) {
      return error.what();
    }
    return "planned";
  };
  EXPECT_EQ(sentence({"v", at::kFloat, {6, 4}}), "it has no tensor v");
  EXPECT_EQ(sentence({"w", at::kFloat, {4, 6}}), "its w has shape [6, 4], this model's has [4, 6]");
}

TEST(LoadPlan, ChunksThatOverlapOrLeaveAHoleAreDamage) {
  for (const std::vector<Box>& boxes :
       {std::vector<Box>{{{0, 0}, {3, 4}}, {{2, 0}, {4, 4}}}, std::vector<Box>{{{0, 0}, {3, 4}}, {{4, 0}, {2, 4}}},
        // The overlap is as large as the hole.
        std::vector<Box>{{{0, 0}, {3, 4}}, {{2, 0}, {3, 4}}}, std::vector<Box>{}}) {
    const CheckpointIndex index = one_tensor(boxes);
    EXPECT_THROW(plan_load(index, index.tensors.at("w").tensor, {{0, 0}, {6, 4}}), DamageError) << boxes.size();
  }
}

TEST(Reshard, EveryLayoutLoadsWhatEveryLayoutSavedBitForBit) {
  ASSERT_GE(test_layouts().size(), 12u);
  for (const TestLayout& from : test_layouts()) {
    MemoryStorage storage;
    save_as_all_ranks(storage, {"root", 5, "run"}, from, 5);
    for (const TestLayout& to : test_layouts()) {
      for (int64_t rank = 0; rank < to.ranks; ++rank) {
        OpenCheckpoint checkpoint(storage, "root/step-5", rank == 0);
        const std::vector<LoadTarget> targets = test_targets(to, rank);
        checkpoint.load(targets);
        ASSERT_TRUE(holds_version(targets, 5)) << from.name << " to " << to.name << ", rank " << rank;
      }
    }
  }
}

TEST(Reshard, TargetsOfOtherStridesAreFilledInPlace) {
  MemoryStorage storage;
  const TestLayout layout = layout_named("fsdp3xtp2");
  save_as_all_ranks(storage, {"root", 5, "run"}, layout, 5);
  std::vector<LoadTarget> targets = test_targets(layout, 1);
  for (LoadTarget& target : targets) {
    if (target.into.dim() == 2)
      target.into = at::empty({target.into.size(1), target.into.size(0)}, target.into.options()).t();
  }
  OpenCheckpoint(storage, "root/step-5", true).load(targets);
  EXPECT_TRUE(holds_version(targets, 5));
}

TEST(Reshard, AnotherDtypeIsRefusedUnlessItIsAskedFor) {
  MemoryStorage storage;
  save_as_all_ranks(storage, {"root", 5, "run"}, test_layouts()[0], 5);
  std::vector<LoadTarget> targets = test_targets(test_layouts()[0], 0);
  targets.resize(1);
  const at::Tensor expected = whole_tensor(targets[0].tensor, 5).to(at::kFloat);
  targets[0].tensor.type = at::kFloat;
  targets[0].into = at::zeros(targets[0].tensor.shape);
  OpenCheckpoint checkpoint(storage, "root/step-5", true);
  EXPECT_THROW(checkpoint.load(targets), MismatchError);
  targets[0].any_type = true;
  checkpoint.load(targets);
  EXPECT_TRUE(same_bits(targets[0].into, expected));
}

TEST(Reshard, ValuesAndFactsComeBack) {
  MemoryStorage storage;
  save_as_all_ranks(storage, {"root", 5, "run"}, layout_named("fsdp3"), 7);
  OpenCheckpoint checkpoint(storage, "root/step-5", true);
  EXPECT_EQ(checkpoint.value("dataloader.world_size")->integer, 3);
  EXPECT_EQ(checkpoint.manifest()->facts.at("version"), 7);
  EXPECT_THROW(checkpoint.value("dataloader.absent"), MismatchError);
}

}  // namespace
}  // namespace titan
