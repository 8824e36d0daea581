// Blobs, the index and the manifest: what is written is read back, and what is malformed is refused. That Python reads
// and writes the same is shown by tests/reference/checkpoint_test.py.
#include "titan/checkpoint/blob.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "checkpoint/memory_storage.h"
#include "support/tensors.h"
#include "titan/checkpoint/metadata.h"

namespace titan {
namespace {

/// A file with something before and after the blob.
class Blobs : public ::testing::Test {
 protected:
  CheckedReader file(const std::string& blob) {
    if (written_) storage_.remove("file");
    written_ = true;
    storage_.write_all("file", "before" + blob + "after");
    return {storage_, "file", std::nullopt};
  }

  std::string blob_of(const at::Tensor& tensor) {
    MemoryStorage storage;
    HashingWriter writer(storage, "blob");
    write_tensor_blob(writer, tensor);
    writer.finish();
    return storage.read_all("blob");
  }

  at::Tensor elements(CheckedReader& file, const StoredElements& stored) {
    const std::string bytes = file.read(stored.storage_byte, stored.storage_bytes);
    const at::Tensor storage = at::empty({stored.storage_bytes / static_cast<int64_t>(c10::elementSize(stored.type))},
                                         at::TensorOptions(stored.type));
    std::memcpy(storage.mutable_data_ptr(), bytes.data(), bytes.size());
    return storage
        .as_strided(stored.shape, stored.strides,
                    (stored.first_byte - stored.storage_byte) / static_cast<int64_t>(c10::elementSize(stored.type)))
        .clone();
  }

  MemoryStorage storage_;
  bool written_ = false;
};

TEST_F(Blobs, EveryDtypeAndShapeComesBackAndHasTheSizeThatWasForeseen) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, std::vector<int64_t>{1}, std::vector<int64_t>{7, 5}, std::vector<int64_t>{2, 3, 4}}) {
      const at::Tensor tensor = normal(shape, 3, at::kFloat, 50).abs().to(type);
      const std::string blob = blob_of(tensor);
      EXPECT_EQ(static_cast<int64_t>(blob.size()), tensor_blob_bytes(type, shape));
      CheckedReader file = this->file(blob);
      const StoredElements stored = read_tensor_blob(file, 6, static_cast<int64_t>(blob.size()));
      EXPECT_TRUE(same_bits(elements(file, stored), tensor));
    }
  }
}

TEST_F(Blobs, LibTorchReadsOurBlobsAndWeReadItsOwn) {
  const at::Tensor tensor = normal({4, 6}, 5, at::kBFloat16);
  const std::string ours = blob_of(tensor);
  EXPECT_TRUE(same_bits(torch::jit::pickle_load({ours.begin(), ours.end()}).toTensor(), tensor));
  for (const at::Tensor& other : {tensor, tensor.t(), tensor.narrow(1, 2, 3), tensor.select(0, 1)}) {
    const std::vector<char> theirs = torch::jit::pickle_save(other);
    CheckedReader file = this->file({theirs.begin(), theirs.end()});
    const StoredElements stored = read_tensor_blob(file, 6, static_cast<int64_t>(theirs.size()));
    EXPECT_TRUE(same_bits(elements(file, stored), other.contiguous()));
  }
}

TEST_F(Blobs, ValuesComeBack) {
  const std::string blob = value_blob(pickle::tuple({pickle::real(0.9), pickle::real(0.95)}));
  CheckedReader file = this->file(blob);
  const PickleRef value = read_value_blob(file, 6, static_cast<int64_t>(blob.size()));
  ASSERT_EQ(value->items.size(), 2u);
  EXPECT_EQ(value->items[1]->real, 0.95);
}

TEST_F(Blobs, EveryTruncationAndEveryFlippedBitIsReadOrRefusedButNeverFollowedOutside) {
  const std::string blob = blob_of(normal({3, 2}, 1));
  int refused = 0;
  const auto attempt = [&](const std::string& changed) {
    CheckedReader file = this->file(changed);
    try {
      const StoredElements stored = read_tensor_blob(file, 6, static_cast<int64_t>(changed.size()));
      EXPECT_GE(stored.first_byte, stored.storage_byte);
      elements(file, stored);
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t size = 0; size < blob.size(); size += 7) attempt(blob.substr(0, size));
  EXPECT_EQ(refused, static_cast<int>((blob.size() + 6) / 7)) << "no truncated blob is accepted";
  for (size_t place = 0; place < blob.size(); ++place) {
    std::string changed = blob;
    changed[place] = static_cast<char>(changed[place] ^ (1 << (place % 8)));
    attempt(changed);
  }
}

// ---- Index ----

CheckpointIndex some_index() {
  CheckpointIndex index;
  index.tensors["layers.0.w"] = {
      {"layers.0.w", at::kBFloat16, {4, 3}},
      {{{{0, 0}, {2, 3}}, {"__0_0.distcp", 700, 1500}}, {{{2, 0}, {2, 3}}, {"__1_0.distcp", int64_t{9} << 32, 1500}}}};
  index.tensors["optimizer.state.layers.0.w.step"] = {{"optimizer.state.layers.0.w.step", at::kFloat, {}},
                                                      {{{{}, {}}, {"__0_0.distcp", 2200, 900}}}};
  index.values["lr_scheduler.last_epoch"] = {"__0_0.distcp", 0, 700};
  return index;
}

TEST(Index, ComesBackAsItWasWritten) {
  CheckpointIndex index = some_index();
  EXPECT_EQ(read_index(write_index(index)), index);
  index.has_manifest = false;
  EXPECT_EQ(read_index(write_index(index)), index);
  EXPECT_EQ(read_index(write_index({})), CheckpointIndex());
}

TEST(Index, SaysHowLongEachFileMustBe) {
  EXPECT_EQ(some_index().file_ends(),
            (std::map<std::string, int64_t>{{"__0_0.distcp", 3100}, {"__1_0.distcp", (int64_t{9} << 32) + 1500}}));
}

TEST(Index, WhatCannotBeIsDamage) {
  const auto refused = [](const std::function<void(CheckpointIndex&)>& change) {
    CheckpointIndex index = some_index();
    change(index);
    EXPECT_THROW(read_index(write_index(index)), DamageError);
  };
  refused([](CheckpointIndex& i) { i.tensors["layers.0.w"].chunks[1].box.offset = {3, 0}; });
  refused([](CheckpointIndex& i) { i.tensors["layers.0.w"].chunks[1].box.offset = {2}; });
  refused([](CheckpointIndex& i) { i.tensors["layers.0.w"].tensor.shape = {int64_t{1} << 40, int64_t{1} << 40}; });
  refused([](CheckpointIndex& i) { i.values["lr_scheduler.last_epoch"].file = "../secret"; });
  refused([](CheckpointIndex& i) { i.values["lr_scheduler.last_epoch"].file = "/etc/passwd"; });
  refused([](CheckpointIndex& i) { i.values["lr_scheduler.last_epoch"].file = ".."; });
  refused([](CheckpointIndex& i) { i.values["lr_scheduler.last_epoch"].offset = -1; });
  refused([](CheckpointIndex& i) { i.values["lr_scheduler.last_epoch"] = {"__0_0.distcp", INT64_MAX, 1}; });
}

TEST(Index, ANameOfADataFileThatBreaksTheMessageIsRefusedAndShownWhole) {
  using namespace std::string_literals;
  for (const auto& [name, shown] : {std::pair("__0_0.distcp\0/../secret"s, "__0_0.distcp\\x00/../secret"s),
                                    std::pair("a\nLOAD: step 5"s, "a\\nLOAD: step 5"s)}) {
    CheckpointIndex index = some_index();
    index.values["lr_scheduler.last_epoch"].file = name;
    try {
      read_index(write_index(index));
      ADD_FAILURE() << shown;
    } catch (const DamageError& error) {
      EXPECT_EQ(error.what(), "the data file " + shown + " has characters in its name that none needs");
    }
  }
}

/// `.metadata` with these chunks and places, all of it as values.
std::string index_of_values(std::vector<PickleRef> chunks, std::vector<PickleRef> places) {
  const auto object = [](const std::string& type, const std::vector<std::pair<std::string, PickleRef>>& fields) {
    return pickle::instance("torch.distributed.checkpoint.metadata " + type, pickle::dictionary(fields));
  };
  const PickleRef properties = pickle::instance("torch.distributed.checkpoint.metadata TensorProperties",
                                                pickle::tuple({pickle::global("torch float32")}));
  const PickleRef tensor =
      object("TensorStorageMetadata",
             {{"properties", properties},
              {"size", pickle::call("torch Size", {pickle::tuple({pickle::integer(4), pickle::integer(3)})})},
              {"chunks", pickle::list(std::move(chunks))}});
  const PickleValue storage{.kind = PickleValue::Kind::dictionary, .text = {}, .items = std::move(places)};
  return write_pickle(object("Metadata", {{"state_dict_metadata", pickle::dictionary({{"w", tensor}})},
                                          {"storage_data", std::make_shared<const PickleValue>(storage)}}));
}

PickleRef pickled_size(int64_t rows, int64_t columns) {
  return pickle::call("torch Size", {pickle::tuple({pickle::integer(rows), pickle::integer(columns)})});
}
PickleRef pickled_chunk(int64_t begin, int64_t rows) {
  return pickle::instance("torch.distributed.checkpoint.metadata ChunkStorageMetadata",
                          pickle::dictionary({{"offsets", pickled_size(begin, 0)}, {"sizes", pickled_size(rows, 3)}}));
}
PickleRef pickled_key(int64_t begin, PickleRef hint) {
  return pickle::instance(
      "torch.distributed.checkpoint.metadata MetadataIndex",
      pickle::dictionary({{"fqn", pickle::text("w")}, {"offset", pickled_size(begin, 0)}, {"index", std::move(hint)}}));
}
PickleRef pickled_info(int64_t offset) {
  return pickle::instance("torch.distributed.checkpoint.filesystem _StorageInfo",
                          pickle::dictionary({{"relative_path", pickle::text("__0_0.distcp")},
                                              {"offset", pickle::integer(offset)},
                                              {"length", pickle::integer(9)}}));
}

TEST(Index, ThatOfAnotherWriterIsReadWhateverItsOrderAndHints) {
  const CheckpointIndex index = read_index(index_of_values(
      {pickled_chunk(0, 1), pickled_chunk(1, 3)},
      {pickled_key(1, pickle::none()), pickled_info(9), pickled_key(0, pickle::integer(1)), pickled_info(0)}));
  const std::vector<StoredChunk> chunks{{{{0, 0}, {1, 3}}, {"__0_0.distcp", 0, 9}},
                                        {{{1, 0}, {3, 3}}, {"__0_0.distcp", 9, 9}}};
  EXPECT_EQ(index.tensors.at("w").chunks, chunks);
  EXPECT_FALSE(index.has_manifest);
}

TEST(Index, WhatDoesNotFitTogetherIsDamage) {
  const PickleRef first = pickled_chunk(0, 1), rest = pickled_chunk(1, 3),
                  at_first = pickled_key(0, pickle::integer(0)), at_rest = pickled_key(1, pickle::integer(1)),
                  five = pickle::integer(5);
  const std::vector<std::tuple<std::vector<PickleRef>, std::vector<PickleRef>, std::string>> cases{
      {{first, five}, {at_first, pickled_info(0), at_rest, pickled_info(9)}, "it holds something instead of a"},
      {{first, rest}, {at_first, pickled_info(0), at_rest, five}, "it holds something instead of a"},
      {{first, rest}, {at_first, pickled_info(0), five, pickled_info(9)}, "it holds something instead of a"},
      {{first, rest}, {at_first, pickled_info(0)}, "w has a chunk without a place"},
      {{first, rest},
       {at_first, pickled_info(0), at_first, pickled_info(9)},
       "w has a chunk that its description lacks"},
      {{first}, {at_first, pickled_info(0), at_rest, pickled_info(9)}, "w has a chunk that its description lacks"}};
  for (const auto& [chunks, places, says] : cases) {
    try {
      read_index(index_of_values(chunks, places));
      ADD_FAILURE() << says;
    } catch (const DamageError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(says)) << error.what() << " instead of " << says;
    }
  }
}

TEST(Index, ManyChunksComeBackAsTheyWereWritten) {
  CheckpointIndex index;
  for (const std::string name : {"model.a", "model.b"}) {
    StoredTensor& tensor = index.tensors[name];
    tensor.tensor = {name, at::kFloat, {2500, 3}};
    for (int64_t i = 0; i < 2500; ++i) {
      tensor.chunks.push_back({{{i, 0}, {1, 3}}, {"__" + std::to_string(i) + "_0.distcp", 12 * i, 12}});
    }
  }
  const std::string bytes = write_index(index);
  EXPECT_EQ(read_index(bytes), index);
  std::string pieces;
  size_t largest = 0;
  write_index(index, [&](std::string_view part) {
    pieces += part;
    largest = std::max(largest, part.size());
  });
  EXPECT_EQ(pieces, bytes);
  EXPECT_LT(largest, bytes.size() / 4) << "it is passed on in pieces";
}

TEST(Index, ManyChunksWithoutHintsAreFound) {
  constexpr int64_t kChunks = 100'000;
  CheckpointIndex index;
  StoredTensor& tensor = index.tensors["w"];
  tensor.tensor = {"w", at::kFloat, {kChunks}};
  for (int64_t i = 0; i < kChunks; ++i) tensor.chunks.push_back({{{i}, {1}}, {"__0_0.distcp", 4 * i, 4}});
  std::string bytes = write_index(index);
  size_t hints = 0;
  for (size_t at = bytes.find("index"); at != std::string::npos; at = bytes.find("index", at)) {
    bytes[at] = 'x';
    ++hints;
  }
  EXPECT_GT(hints, 0u);
  EXPECT_EQ(read_index(bytes), index);
}

TEST(Index, WhatStandsForMoreWorkThanItHasBytesIsDamage) {
  const auto refused = [](const std::function<void(CheckpointIndex&)>& change) {
    CheckpointIndex index = some_index();
    change(index);
    EXPECT_ANY_THROW(read_index(write_index(index)));
  };
  refused([](CheckpointIndex& i) { i.tensors["layers.0.w"].tensor.shape.resize(100, 1); });
  refused([](CheckpointIndex& i) { i.values[std::string(10'000, 'n')] = {"__0_0.distcp", 0, 700}; });
}

TEST(Index, AnotherPickleIsDamage) {
  EXPECT_THROW(read_index(write_pickle(pickle::integer(5))), DamageError);
  EXPECT_THROW(read_index("no pickle"), PickleError);
}

// ---- Manifest ----

Manifest some_manifest() {
  return {
      1200, "run-7", {{"tokens", 5}, {"layout", "fsdp 4"}}, {{".metadata", record_of("abc")}, {"e", record_of("")}}};
}

TEST(Manifest, ComesBackAsItWasWritten) {
  const Manifest manifest = some_manifest();
  const Manifest read = read_manifest(write_manifest(manifest));
  EXPECT_EQ(read.step, manifest.step);
  EXPECT_EQ(read.run, manifest.run);
  EXPECT_EQ(read.facts, manifest.facts);
  EXPECT_EQ(read.files, manifest.files);
}

TEST(Manifest, AnyFlippedBitAnyTruncationAndAnyAdditionIsDamage) {
  const std::string whole = write_manifest(some_manifest());
  EXPECT_NO_THROW(nlohmann::json::parse(whole));
  for (size_t place = 0; place < whole.size(); ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ (1 << bit));
      EXPECT_THROW(read_manifest(changed), DamageError) << place;
    }
    EXPECT_THROW(read_manifest(whole.substr(0, place)), DamageError) << place;
  }
  EXPECT_THROW(read_manifest(whole + " "), DamageError);
}

TEST(Manifest, ANewerFormatIsNoDamageButAnErrorThatSaysSo) {
  std::string text = write_manifest(some_manifest());
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 2");
  const std::string last = " \"xxh3_128\": \"";
  const size_t at = text.rfind(last);
  text = text.substr(0, at) + last + xxh3_128(text.substr(0, at)) + "\"\n}\n";
  try {
    read_manifest(text);
    FAIL();
  } catch (const DamageError& error) {
    FAIL() << error.what();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("format 2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
