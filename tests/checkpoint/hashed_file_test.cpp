#include "titan/checkpoint/storage.h"

#include <gtest/gtest.h>

#include <random>

#include "checkpoint/memory_storage.h"

namespace titan {
namespace {

std::string noise(int64_t size, uint64_t seed = 1) {
  std::string bytes(static_cast<size_t>(size), '\0');
  std::mt19937_64 generator(seed);
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const DamageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Hashes, AreThoseOfXxhsum) {
  EXPECT_EQ(xxh3_128(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128("titan").size(), 32u);
  EXPECT_NE(xxh3_128("titan"), xxh3_128("titam"));
}

TEST(HashingWriter, TheRecordIsThatOfTheBytesHoweverTheyWerePassed) {
  const std::string bytes = noise(2 * kHashBlock + 12345);
  std::mt19937_64 generator(2);
  for (const int64_t largest : {int64_t{5000}, int64_t{70000}, int64_t{3} << 20, 3 * kHashBlock}) {
    MemoryStorage storage;
    HashingWriter writer(storage, "file");
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::string_view part = rest.substr(0, 1 + generator() % static_cast<uint64_t>(largest));
      writer.write(part);
      rest.remove_prefix(part.size());
      EXPECT_EQ(writer.position(), static_cast<int64_t>(bytes.size() - rest.size()));
    }
    const FileRecord record = writer.finish();
    EXPECT_EQ(record, record_of(bytes)) << largest;
    EXPECT_EQ(record.hashes.size(), 3u);
    EXPECT_TRUE(storage.read_all("file") == bytes) << largest;
    storage.sync_folder("");
    storage.restart({Surviving::Kind::none, 0});
    EXPECT_TRUE(storage.read_all("file") == bytes) << "finish syncs";
  }
}

TEST(HashingWriter, AFileOfNothingHasNoBlocks) {
  MemoryStorage storage;
  EXPECT_EQ(HashingWriter(storage, "file").finish(), (FileRecord{0, {}}));
}

class Checked : public ::testing::Test {
 protected:
  void SetUp() override {
    bytes_ = noise(2 * kHashBlock + 999);
    storage_.write_all("file", bytes_);
  }
  CheckedReader reader() { return {storage_, "file", record_of(bytes_)}; }

  MemoryStorage storage_;
  std::string bytes_;
};

TEST_F(Checked, AnyRangeIsReadAsItIs) {
  CheckedReader reader = this->reader();
  const std::vector<std::pair<int64_t, int64_t>> ranges{{0, 10},
                                                        {kHashBlock - 5, 10},
                                                        {kHashBlock, kHashBlock},
                                                        {0, 2 * kHashBlock + 999},
                                                        {1, kHashBlock},
                                                        {2 * kHashBlock + 998, 1},
                                                        {77, 0},
                                                        {2 * kHashBlock + 999, 0},
                                                        {3, 5},
                                                        {kHashBlock - 1, kHashBlock + 2}};
  for (const auto& [offset, count] : ranges) {
    EXPECT_TRUE(reader.read(offset, count) == bytes_.substr(static_cast<size_t>(offset), static_cast<size_t>(count)))
        << offset << " " << count;
  }
}

TEST_F(Checked, ABlockThatDiffersIsNoticedWhenItIsReadAndTheOthersAreFine) {
  storage_.damage("file", [](std::string& bytes) { bytes[kHashBlock + 17] ^= 8; });
  CheckedReader reader = this->reader();
  EXPECT_EQ(reader.read(0, 5), bytes_.substr(0, 5));
  EXPECT_EQ(reader.read(2 * kHashBlock, 5), bytes_.substr(2 * kHashBlock, 5));
  const std::string text = "the bytes of file from 8388608 on are not those that were saved (their XXH3-128 differs)";
  EXPECT_EQ(refusal([&] { reader.read(kHashBlock, 5); }), text);
  std::string whole(kHashBlock, '\0');
  EXPECT_EQ(refusal([&] { reader.read(kHashBlock, whole); }), text);
  EXPECT_EQ(refusal([&] { reader.check_all(); }), text);
}

TEST_F(Checked, CheckingAllReadsWhatWasNotReadAndNothingTwice) {
  CheckedReader reader = this->reader();
  reader.read(0, 1);
  const int64_t before = storage_.calls();
  reader.check_all();
  EXPECT_EQ(storage_.calls() - before, 2);
  reader.check_all();
  EXPECT_EQ(storage_.calls() - before, 2);
}

TEST_F(Checked, AMissingFileAnotherSizeAndAPlaceOutsideAreDamage) {
  EXPECT_EQ(refusal([&] { CheckedReader(storage_, "absent", std::nullopt); }), "absent is missing");
  EXPECT_EQ(refusal([&] { CheckedReader(storage_, "file", record_of("xyz")); }),
            "file has 16778215 bytes instead of 3");
  CheckedReader reader = this->reader();
  EXPECT_NE(refusal([&] { reader.read(2 * kHashBlock, 1000); }), "accepted");
  EXPECT_NE(refusal([&] { reader.read(-1, 1); }), "accepted");
  EXPECT_NE(refusal([&] { reader.read(INT64_MAX, 1); }), "accepted");
}

TEST_F(Checked, WithoutARecordBytesAreReadAsTheyAre) {
  CheckedReader reader(storage_, "file", std::nullopt);
  EXPECT_TRUE(reader.read(0, reader.size()) == bytes_);
  EXPECT_EQ(reader.read(kHashBlock - 2, 4), bytes_.substr(kHashBlock - 2, 4));
}

TEST_F(Checked, AMediumThatFailsIsNoDamage) {
  CheckedReader reader = this->reader();
  storage_.set_refusal([](const std::string&) { return 5; });
  EXPECT_THROW(reader.read(0, 1), StorageError);
}

}  // namespace
}  // namespace titan
