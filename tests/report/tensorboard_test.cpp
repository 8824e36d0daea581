#include "titan/report/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "titan/base/filesystem.h"

namespace titan {
namespace {

class TensorBoardFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("titan-events-" + std::to_string(::getpid()));
  Log log_;
};

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

/// What the format's readers check of every record; returns the records.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  auto masked = [](std::string_view text) {
    const uint32_t crc = crc32c(text);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  auto number = [&](size_t at, auto value) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  for (size_t at = 0; at < bytes.size();) {
    const auto length = number(at, uint64_t{});
    EXPECT_EQ(number(at + 8, uint32_t{}), masked(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number(at + 12 + length, uint32_t{}), masked(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST_F(TensorBoardFiles, HoldTheVersionTheStartAndTheValuesAsCheckedRecords) {
  {
    EventFile events(folder_, 1000, log_);
    events.begin_at(300, 1000);
    events.add(300, 1001, std::vector<TaggedValue>{{"a/b", 0.5}, {"c", -2}});
  }
  ASSERT_EQ(files().size(), 1u);
  const std::vector<std::string> records = records_of(read_file(folder_ / files()[0]));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_TRUE(
      records[0].ends_with("\x1A\x0D"
                           "brain.Event:2"))
      << "field 3, bytes, 13 of them";
  EXPECT_TRUE(records[1].ends_with("\x10\xAC\x02\x3A\x02\x08\x01")) << "step 300, then a session that starts";
  const std::string half("\x15\x00\x00\x00\x3F", 5);
  EXPECT_NE(records[2].find("\x0A\x03"
                            "a/b" +
                            half),
            std::string::npos);
}

TEST_F(TensorBoardFiles, ALaterFileSortsAfterAnEarlierOneWhateverTheClockSays) {
  for (const double now : {1700000500.0, 1700000500.0, 1690000000.0}) EventFile(folder_, now, log_);
  const std::vector<std::string> names = files();
  ASSERT_EQ(names.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(names[i].starts_with("events.out.tfevents.170000050" + std::to_string(i))) << names[i];
  }
}

TEST_F(TensorBoardFiles, ANewRunHasAFolderOfItsOwnAndOneThatGoesOnTheNewest) {
  const std::string fresh = tensorboard_folder(folder_, false, 1700000000).filename();
  EXPECT_TRUE(::testing::internal::RE::FullMatch(fresh, "[0-9]+-[0-9]+")) << fresh;
  EXPECT_EQ(fresh.size(), 13u);
  EXPECT_EQ(tensorboard_folder(folder_, true, 1700000000).filename(), fresh) << "there is none to go on in";
  for (const char* name : {"20250101-1200", "20250203-0000", "notes", "20259999-99x9"}) {
    std::filesystem::create_directories(folder_ / name);
  }
  EXPECT_EQ(tensorboard_folder(folder_, true, 1700000000), folder_ / "20250203-0000");
  EXPECT_EQ(tensorboard_folder(folder_, false, 1700000000).filename(), fresh);
}

TEST_F(TensorBoardFiles, AFolderThatCannotBeMadeCostsOneWarning) {
  std::ofstream(folder_.string()) << "in the way";
  ::testing::internal::CaptureStdout();
  {
    EventFile events(folder_, 1000, log_);
    events.begin_at(1, 1000);
    events.add(1, 1000, std::vector<TaggedValue>{{"a", 1}});
  }
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find(folder_.string()), std::string::npos) << said;
  EXPECT_EQ(said.find("training continues"), said.rfind("training continues")) << said;
  EXPECT_NE(said.find("Not a directory"), std::string::npos) << said;
}

}  // namespace
}  // namespace titan
