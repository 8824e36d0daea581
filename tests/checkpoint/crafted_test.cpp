// Checkpoints that no program saved: files of other kinds and indexes that contradict the data are refused with a
// sentence, and without reading more than that takes.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/memory_storage.h"
#include "checkpoint/states.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"

namespace titan {
namespace {

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return error.what();
  }
  return "accepted";
}

TEST(Crafted, ALargeFileInPlaceOfTheIndexIsRefusedByItsFirstBytes) {
  const std::string begins = "it does not begin as a pickle of protocol 2 to 5";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", begins}, {std::string(2, '\0'), begins}, {"\x80\x07", begins}, {"\x1F\x8B", ".metadata: this is gzip"}};
  for (const auto& [head, says] : cases) {
    MemoryStorage storage;
    storage.make_folders("step-1");
    storage.write_all("step-1/.metadata", head + std::string(3 * kHashBlock, '\0'));
    const size_t before = storage.journal().size();
    const std::string said = refusal([&] { OpenCheckpoint(storage, "step-1", /*all_sizes=*/true); });
    EXPECT_TRUE(said.starts_with(says)) << said;
    const auto begin = storage.journal().begin() + static_cast<std::ptrdiff_t>(before);
    EXPECT_EQ(std::count(begin, storage.journal().end(), "read step-1/.metadata"), 1) << "one block of three";
  }
}

/// A checkpoint of two ranks whose index `change` changes, without a manifest.
std::unique_ptr<MemoryStorage> with_index(const std::function<void(CheckpointIndex&)>& change) {
  auto storage = std::make_unique<MemoryStorage>();
  for (const TestLayout& layout : test_layouts()) {
    if (layout.name == "fsdp2") save_as_all_ranks(*storage, {"root", 1, "run"}, layout, 1);
  }
  const std::filesystem::path folder = std::filesystem::path("root") / step_folder(1);
  CheckpointIndex index = read_index(storage->read_all(folder / kIndexFile));
  index.has_manifest = false;
  change(index);
  storage->remove(folder / kManifestFile);
  storage->damage(folder / kIndexFile, [&](std::string& bytes) { bytes = write_index(index); });
  return storage;
}

const std::string kWeights = "tok_embeddings.weight", kMoments = "optimizer.state.tok_embeddings.weight.exp_avg";

TEST(Crafted, WhatTheEntriesAreCheckedForIsWhatLoadingRefuses) {
  using Change = std::function<void(StoredTensor&, CheckpointIndex&)>;
  const std::string left_out = "chunks of tok_embeddings.weight leave a part of it out",
                    other = "a chunk of tok_embeddings.weight is ", overlap = "chunks of tok_embeddings.weight overlap",
                    no_blob = "a zip archive is expected here";
  const auto of_type = [](at::ScalarType type) {
    return [type](StoredTensor& stored, CheckpointIndex&) { stored.tensor.type = type; };
  };
  const std::vector<std::tuple<std::string, Change, std::string>> cases{
      {"half of it", [](StoredTensor& stored, CheckpointIndex&) { stored.chunks.pop_back(); }, left_out},
      {"no chunk", [](StoredTensor& stored, CheckpointIndex&) { stored.chunks.clear(); }, left_out},
      {"a large size",
       [](StoredTensor& stored, CheckpointIndex&) {
         stored.tensor.shape = {int64_t{1} << 30, 256};
       },
       left_out},
      {"a chunk twice", [](StoredTensor& stored, CheckpointIndex&) { stored.chunks.push_back(stored.chunks[0]); },
       overlap},
      {"no bytes", [](StoredTensor& stored, CheckpointIndex&) { stored.chunks[1].place.length = 0; }, no_blob},
      {"another chunk's place",
       [](StoredTensor& stored, CheckpointIndex&) { stored.chunks[0].place = stored.chunks[1].place; }, other},
      {"another tensor's place",
       [](StoredTensor& stored, CheckpointIndex& index) {
         stored.chunks[0].place = index.tensors.at(kMoments).chunks[0].place;
       },
       other},
      {"float16", of_type(at::kHalf), other},
      {"bool", of_type(at::kBool), other},
      {"float64", of_type(at::kDouble), other}};
  for (const auto& [what, change, says] : cases) {
    const Change& apply = change;
    const auto storage = with_index([&](CheckpointIndex& index) {
      StoredTensor& stored = index.tensors.at(kWeights);
      ASSERT_EQ(stored.chunks.size(), 2u);
      apply(stored, index);
    });
    OpenCheckpoint checkpoint(*storage, std::filesystem::path("root") / step_folder(1), /*all_sizes=*/true);
    const std::string said = refusal([&] { checkpoint.check_entries(); });
    EXPECT_TRUE(said.starts_with(says)) << what << ": " << said;
    EXPECT_EQ(said.find(" in the index") != said.npos, says == other) << said;
    EXPECT_EQ(said.find("distcp, and float16 [") != said.npos, what == "float16") << said;
    const LogicalTensor tensor = checkpoint.index().tensors.at(kWeights).tensor;
    const Box whole = whole_box(tensor.shape);
    // The large size has no memory: it is refused before anything is read into one element that stands for all.
    const bool is_large = tensor.bytes() > kHashBlock;
    const at::Tensor into =
        is_large ? at::zeros({}, tensor.type).expand(tensor.shape) : at::empty(tensor.shape, tensor.type);
    const LoadTarget target{tensor, whole, into};
    EXPECT_EQ(refusal([&] { checkpoint.load({&target, 1}); }), said) << what;
  }
}

TEST(Crafted, EntriesThatFitAreAcceptedWithAManifestAndWithout) {
  const std::filesystem::path folder = std::filesystem::path("root") / step_folder(1);
  for (const TestLayout& layout : test_layouts()) {
    MemoryStorage storage;
    save_as_all_ranks(storage, {"root", 1, "run"}, layout, 1);
    OpenCheckpoint checkpoint(storage, folder, /*all_sizes=*/true);
    EXPECT_EQ(refusal([&] { checkpoint.check_entries(); }), "accepted") << layout.name;
  }
  const auto storage = with_index([](CheckpointIndex&) {});
  OpenCheckpoint checkpoint(*storage, folder, /*all_sizes=*/true);
  EXPECT_EQ(refusal([&] { checkpoint.check_entries(); }), "accepted");
}

}  // namespace
}  // namespace titan
