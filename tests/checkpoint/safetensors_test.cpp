#include "titan/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/safetensors_file.h"
#include "support/tensors.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("titan-safetensors-" + std::to_string(::getpid()) + "-" +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "file.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write_raw(const std::string& header, const std::string& data) const {
    const uint64_t length = header.size();
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << header << data;
  }

  std::string refusal() const {
    try {
      read_safetensors(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::storage) << error.what();
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder_, path_;
};

TEST_F(Safetensors, EveryTypeAndShapeComesBackBitForBitInItsOrder) {
  NamedTensors tensors;
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
    tensors.emplace_back(std::string("matrix of ") + c10::toString(type),
                         normal({3, 5}, 1, at::kFloat, 50).abs().to(type));
  }
  tensors.emplace_back("a scalar", at::scalar_tensor(2.5));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("not contiguous", normal({4, 6}, 2).t());
  tensors.emplace_back("not a number", at::tensor({NAN, INFINITY, -0.0f}));
  write_safetensors(path_, tensors, {{"step", "7"}});
  const NamedTensors read = read_safetensors(path_);
  ASSERT_EQ(read.size(), tensors.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].first, tensors[i].first);
    EXPECT_TRUE(same_bits(read[i].second, tensors[i].second)) << read[i].first;
  }
}

TEST_F(Safetensors, TheHeaderIsJsonOfAMultipleOfEightBytesWithTheMetadata) {
  write_safetensors(path_, {{"w", at::ones({2, 3})}, {"b", at::ones({4}, at::kBFloat16)}}, {{"format", "pt"}});
  const std::string bytes = read_file(path_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + length + 24 + 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"], (nlohmann::json{{"format", "pt"}}));
  EXPECT_EQ(header["w"], (nlohmann::json{{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}));
  EXPECT_EQ(header["b"], (nlohmann::json{{"dtype", "BF16"}, {"shape", {4}}, {"data_offsets", {24, 32}}}));
}

TEST_F(Safetensors, AFileWithoutTensorsIsLegal) {
  write_safetensors(path_, {});
  EXPECT_TRUE(read_safetensors(path_).empty());
}

TEST_F(Safetensors, DamagedHeadersAreErrorsThatNameTheFile) {
  const char* const headers[] = {
      "not json",
      "[1, 2]",
      R"({"w": 5})",
      R"({"w": {"shape": [2], "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": 3, "shape": [2], "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F32", "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F32", "shape": "two", "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})",
      R"({"w": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 8]}})",
      R"({"w": {"dtype": "F32", "shape": [2]}})",
      R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0]}})",
      R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})",
      R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
      R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}})",
      R"({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})",
  };
  for (const char* header : headers) {
    write_raw(header, std::string(8, '\0'));
    EXPECT_NE(refusal().find(path_.string()), std::string::npos) << header << " → " << refusal();
  }
  write_raw(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", std::string(8, '\0'));
  EXPECT_EQ(refusal(), "accepted") << "the same without damage";
}

TEST_F(Safetensors, EveryTruncationOfAFileIsFound) {
  write_safetensors(path_, {{"w", normal({3}, 1)}, {"v", normal({2}, 2)}});
  const std::string whole = read_file(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path_, std::ios::binary) << whole.substr(0, size);
    EXPECT_NE(refusal(), "accepted") << size << " of " << whole.size() << " bytes";
  }
}

TEST_F(Safetensors, AMissingFileAndAFolderThatCannotBeWrittenAreStorageErrors) {
  EXPECT_NE(refusal().find(path_.string()), std::string::npos);
  try {
    write_safetensors(folder_ / "nowhere" / "file.safetensors", {{"w", at::ones({1})}});
    FAIL() << "written into a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
  }
}

}  // namespace
}  // namespace titan
