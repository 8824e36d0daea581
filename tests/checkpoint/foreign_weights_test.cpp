// Weights from and to another program's files: which tensors fit, the permuted rows from any box, and exports that are
// whole or not there.
#include "titan/checkpoint/foreign_weights.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "memory_source.h"
#include "memory_storage.h"
#include "states.h"
#include "titan/checkpoint/hugging_face_export.h"

namespace titan {
namespace {

constexpr int64_t kHeads = 3, kHeadDim = 4, kWeightColumns = 5;

/// A model of a matrix that turns, one that does not, and a norm.
ForeignModel small_model() {
  ForeignModel model;
  model.tensors = {{"their.q", "wq", {kHeads * kHeadDim, kWeightColumns}, kHeads},
                   {"their.w", "w", {7, kWeightColumns}},
                   {"their.norm", "norm", {kWeightColumns}}};
  model.copies = {{"their.copy", "their.w"}};
  model.ignored = {".table"};
  return model;
}

std::map<std::string, at::Tensor> their_tensors() {
  return {{"their.q", normal({kHeads * kHeadDim, kWeightColumns}, 1)},
          {"their.w", normal({7, kWeightColumns}, 2)},
          {"their.norm", normal({kWeightColumns}, 3)}};
}

std::string complaint_about(std::map<std::string, at::Tensor> tensors) {
  MemorySource source(std::move(tensors));
  try {
    check_fit(small_model(), source);
  } catch (const MismatchError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RotaryRows, PairsStandWhereHalvesStood) {
  // Head h, half p, pair j is at h·d + p·d/2 + j there and at h·d + 2j + p here.
  const at::Tensor theirs = at::arange(kHeads * kHeadDim).view({-1, 1}).expand({-1, 2}).contiguous();
  const at::Tensor ours = pairs_from_halves(theirs, kHeadDim);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t j = 0; j < kHeadDim / 2; ++j) {
      for (int64_t p = 0; p < 2; ++p) {
        EXPECT_EQ(ours[h * kHeadDim + 2 * j + p][0].item<int64_t>(), h * kHeadDim + p * kHeadDim / 2 + j);
      }
    }
  }
  EXPECT_TRUE(halves_from_pairs(ours, kHeadDim).equal(theirs));
}

TEST(RotaryRows, EveryBoxOfTheWholeTensorHasTheRowsOfTheWholePermutation) {
  const auto tensors = their_tensors();
  MemorySource source(tensors);
  const ForeignTensor q = small_model().tensors[0];
  const at::Tensor whole = pairs_from_halves(tensors.at("their.q"), kHeadDim);
  for (int64_t first = 0; first < kHeads * kHeadDim; ++first) {
    for (int64_t count = 0; first + count <= kHeads * kHeadDim; ++count) {
      const at::Tensor box = at::empty({count, 3});
      read_parameter(source, q, {{first, 1}, {count, 3}}, box);
      EXPECT_TRUE(box.equal(whole.narrow(0, first, count).narrow(1, 1, 3))) << first << " + " << count;
    }
  }
}

TEST(Fit, CountsWhatIsThereAndNamesWhatIsNot) {
  MemorySource source(their_tensors());
  const Fit fit = check_fit(small_model(), source);
  EXPECT_EQ(fit.counts(), "3/3 tensors, 0 missing, 0 unexpected");
  EXPECT_EQ(fit.parameters, kHeads * kHeadDim * kWeightColumns + 7 * kWeightColumns + kWeightColumns);

  auto tensors = their_tensors();
  tensors.erase("their.w");
  tensors["their.bias"] = at::zeros({2});
  EXPECT_EQ(complaint_about(tensors),
            "memory holds another model: 2/3 tensors, 1 missing, 1 unexpected; missing: their.w; unexpected: "
            "their.bias");
}

TEST(Fit, TheNamesOfABaseModelLackItsPrefix) {
  ForeignModel model = small_model();
  for (ForeignTensor& tensor : model.tensors) tensor.name = "model." + tensor.name;
  model.tensors.push_back({"lm_head", "output", {7, kWeightColumns}});
  model.copies = {{"model.their.copy", "model.their.w"}};
  auto tensors = their_tensors();
  tensors["their.copy"] = tensors.at("their.w").clone();
  tensors["lm_head"] = tensors.at("their.w").clone();
  MemorySource bare(tensors);
  EXPECT_EQ(check_fit(named_as_in(model, bare), bare).counts(), "4/4 tensors, 0 missing, 0 unexpected");
  tensors.erase("their.norm");
  MemorySource incomplete(tensors);
  EXPECT_EQ(fit_of(named_as_in(model, incomplete), incomplete).missing, std::vector<std::string>{"model.their.norm"});
  std::map<std::string, at::Tensor> prefixed;
  for (const auto& [name, tensor] : their_tensors()) prefixed["model." + name] = tensor;
  prefixed["lm_head"] = at::zeros({7, kWeightColumns});
  prefixed["their.w"] = at::zeros({1});
  MemorySource both(prefixed);
  EXPECT_EQ(fit_of(named_as_in(model, both), both).unexpected, std::vector<std::string>{"their.w"});
}

TEST(Fit, OfATiedWeightTheSecondNameAloneIsEnough) {
  ForeignModel model = small_model();
  auto tensors = their_tensors();
  tensors["their.copy"] = tensors.at("their.w");
  tensors.erase("their.w");
  MemorySource source(tensors);
  model = named_as_in(model, source);
  EXPECT_TRUE(check_fit(model, source).complete());
  EXPECT_TRUE(std::any_of(model.tensors.begin(), model.tensors.end(),
                          [](const ForeignTensor& tensor) { return tensor.name == "their.copy"; }));
}

TEST(Fit, AnotherShapeAndWholeNumbersAreNoWeights) {
  auto tensors = their_tensors();
  tensors["their.w"] = at::zeros({8, kWeightColumns});
  EXPECT_NE(complaint_about(tensors).find("their.w has shape [8, 5], this model's has [7, 5]"), std::string::npos);
  tensors["their.w"] = at::zeros({7, kWeightColumns}, at::kLong);
  EXPECT_NE(complaint_about(tensors).find("their.w is of int64"), std::string::npos);
}

TEST(Fit, ATiedWeightsSecondCopyMustBeOne) {
  auto tensors = their_tensors();
  tensors["their.copy"] = tensors.at("their.w").clone();
  tensors["layer.table"] = at::ones({3});
  EXPECT_EQ(complaint_about(tensors), "accepted");
  tensors["their.copy"][6][4] += 1;
  EXPECT_NE(complaint_about(tensors).find("their.copy differs from their.w"), std::string::npos);
}

TEST(ExportPlan, FilesHoldAsManyTensorsAsFitInTheirOrder) {
  ForeignModel model;
  for (int64_t rows : {4, 4, 4, 100, 1}) {
    model.tensors.push_back({"t" + std::to_string(model.tensors.size()), "ours", {rows, 1}});
  }
  const std::vector<at::ScalarType> types(5, at::kFloat);
  const auto names = [](const std::vector<ExportedFile>& files) {
    std::vector<size_t> counts;
    for (const ExportedFile& file : files) counts.push_back(file.tensors.size());
    return counts;
  };
  const std::vector<ExportedFile> files = plan_export(model, types, 32);
  EXPECT_EQ(names(files), (std::vector<size_t>{2, 1, 1, 1}));  // one that is too large has a file of its own
  EXPECT_EQ(files[3].name, "model-00004-of-00004.safetensors");
  EXPECT_EQ(files[0].bytes(), 32);
  const std::vector<ExportedFile> one = plan_export(model, types, kDefaultShardBytes);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].name, "model.safetensors");
}

/// Our weights of the small model.
MemorySource our_weights() {
  return MemorySource({{"wq", normal({kHeads * kHeadDim, kWeightColumns}, 1)},
                       {"w", normal({7, kWeightColumns}, 2)},
                       {"norm", normal({kWeightColumns}, 3)}});
}

HuggingFaceExport small_export() {
  HuggingFaceExport wanted;
  wanted.folder = "out/model";
  wanted.run = "test";
  wanted.model = small_model();
  wanted.most_bytes = 300;
  wanted.companions = {{"config.json", "{}"}};
  return wanted;
}

/// Whether the folder holds all tensors of the small model, as they were given.
bool is_whole(Storage& storage) {
  SafetensorsFolder written(storage, "out/model");
  written.check_all();
  MemorySource ours = our_weights();
  for (const ForeignTensor& tensor : small_model().tensors) {
    const at::Tensor found = at::empty(tensor.shape), expected = at::empty(tensor.shape);
    const Box box{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape};
    read_parameter(written, tensor, box, found);
    ours.read(tensor.ours, box, expected);
    if (!found.equal(expected)) return false;
  }
  return check_fit(small_model(), written).complete();
}

TEST(Export, IsReadBackBitForBitAndVerified) {
  MemoryStorage storage;
  MemorySource ours = our_weights();
  const SaveOutcome outcome = export_together(storage, *make_lone_barrier(), small_export(), ours);
  ASSERT_TRUE(outcome.committed) << outcome.problem;
  EXPECT_TRUE(is_whole(storage));
  EXPECT_TRUE(SafetensorsFolder(storage, "out/model").verified());
  storage.write_all("out/model/adapter_config.json", "{}");
  EXPECT_THROW(SafetensorsFolder(storage, "out/model"), Error) << "the adapter would not be read";
  EXPECT_EQ(storage.list("out").size(), 1u);
}

TEST(Export, AfterACrashAtEveryCallTheFolderIsWholeOrNotThere) {
  for (int64_t call = 1;; ++call) {
    MemoryStorage storage;
    MemorySource ours = our_weights();
    storage.stop_after(call);
    bool stopped = false;
    try {
      export_together(storage, *make_lone_barrier(), small_export(), ours);
    } catch (const MachineStopped&) {
      stopped = true;
    }
    if (!stopped) break;
    storage.restart({Surviving::Kind::half, static_cast<uint64_t>(call)});
    bool there = false;
    for (const StorageEntry& entry : storage.list("out")) there = there || entry.name == "model";
    if (!there) {  // what is left is no hindrance
      EXPECT_TRUE(export_together(storage, *make_lone_barrier(), small_export(), ours).committed) << call;
    }
    EXPECT_TRUE(is_whole(storage)) << "after call " << call;
  }
}

TEST(Export, AFailureLeavesNothingAndAFolderThatIsThereIsLeftAlone) {
  MemoryStorage storage;
  MemorySource ours = our_weights();
  storage.set_refusal([](const std::string& what) { return what.find("config.json") != std::string::npos ? EIO : 0; });
  EXPECT_FALSE(export_together(storage, *make_lone_barrier(), small_export(), ours).committed);
  storage.set_refusal(nullptr);
  EXPECT_TRUE(storage.list("out").empty());
  EXPECT_TRUE(export_together(storage, *make_lone_barrier(), small_export(), ours).committed);
  const auto before = storage.files();
  const SaveOutcome again = export_together(storage, *make_lone_barrier(), small_export(), ours);
  EXPECT_NE(again.problem.find("File exists"), std::string::npos) << again.problem;
  EXPECT_EQ(storage.files(), before);
}

TEST(Export, OneFlippedBitInAnyFileIsFound) {
  MemoryStorage whole;
  MemorySource ours = our_weights();
  ASSERT_TRUE(export_together(whole, *make_lone_barrier(), small_export(), ours).committed);
  for (const auto& [file, bytes] : whole.files()) {
    const std::unique_ptr<MemoryStorage> storage = whole.copy();
    storage->damage(file, [](std::string& content) { content[content.size() / 2] ^= 4; });
    EXPECT_THROW(SafetensorsFolder(*storage, "out/model").check_all(), DamageError) << file;
  }
}

TEST(Import, IsACheckpointOfStepZeroWithTheModelAndNothingElse) {
  MemoryStorage storage;
  MemorySource theirs(their_tensors());
  import_weights(storage, theirs, small_model(), at::kBFloat16, "out/ours", {{"tokens", 0}});
  OpenCheckpoint checkpoint(storage, "out/ours", true);
  EXPECT_TRUE(checkpoint.verified());
  EXPECT_EQ(checkpoint.manifest()->step, 0);
  EXPECT_EQ(checkpoint.index().tensors.size(), 3u);
  CheckpointSource ours(checkpoint);
  const at::Tensor q = at::empty({kHeads * kHeadDim, kWeightColumns}, at::kBFloat16);
  ours.read("wq", {{0, 0}, {kHeads * kHeadDim, kWeightColumns}}, q);
  EXPECT_TRUE(q.equal(pairs_from_halves(their_tensors().at("their.q"), kHeadDim).to(at::kBFloat16)));
  EXPECT_THROW(import_weights(storage, theirs, small_model(), at::kFloat, "out/ours", {}), StorageError);
}

TEST(Import, AfterACrashAtEveryCallTheCheckpointIsWholeOrNotThere) {
  for (int64_t call = 1;; ++call) {
    MemoryStorage storage;
    MemorySource theirs(their_tensors());
    storage.stop_after(call);
    bool stopped = false;
    try {
      import_weights(storage, theirs, small_model(), at::kFloat, "out/ours", {});
    } catch (const MachineStopped&) {
      stopped = true;
    }
    if (!stopped) break;
    storage.restart({Surviving::Kind::half, static_cast<uint64_t>(call)});
    bool there = false;
    for (const StorageEntry& entry : storage.list("out")) there = there || entry.name == "ours";
    if (!there) {
      EXPECT_NO_THROW(import_weights(storage, theirs, small_model(), at::kFloat, "out/ours", {})) << call;
    }
    EXPECT_NO_THROW(OpenCheckpoint(storage, "out/ours", true).check_all()) << call;
  }
}

std::vector<std::string> names_of(const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) names.push_back(name);
  return names;
}

TEST(Conversion, WhatHasReturnedIsThereHoweverMuchIsDroppedInAFolderThatWasNotOnTheMediumYet) {
  const auto expect_all_left = [](const std::function<void(Storage&)>& convert) {
    MemoryStorage storage;
    storage.make_folders("out");
    convert(storage);
    const std::map<std::string, std::string> written = storage.files();
    EXPECT_FALSE(written.empty());
    storage.restart({Surviving::Kind::none, 0});
    EXPECT_EQ(names_of(storage.files()), names_of(written));
    EXPECT_TRUE(storage.files() == written) << "to the byte";
  };
  expect_all_left([](Storage& storage) {
    MemorySource ours = our_weights();
    ASSERT_TRUE(export_together(storage, *make_lone_barrier(), small_export(), ours).committed);
  });
  expect_all_left([](Storage& storage) {
    MemorySource theirs(their_tensors());
    import_weights(storage, theirs, small_model(), at::kFloat, "out/ours", {});
  });
}

}  // namespace
}  // namespace titan
