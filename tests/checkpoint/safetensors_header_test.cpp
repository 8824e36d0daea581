// Headers that lie: each kind of lie is one sentence that names the file and the tensor, and nothing is read by it.
#include "titan/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "memory_storage.h"
#include "titan/checkpoint/metadata.h"

namespace titan {
namespace {

constexpr const char* kFile = "model.safetensors";

std::string with_length(uint64_t length, const std::string& header) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}
std::string with_length(const std::string& header) { return with_length(header.size(), header); }

/// What is said of a file of these bytes; "accepted" when nothing is.
std::string refusal_of(const std::string& bytes) {
  MemoryStorage storage;
  storage.write_all(kFile, bytes);
  CheckedReader file(storage, kFile, std::nullopt);
  try {
    read_safetensors_header(file);
  } catch (const DamageError& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    const std::string said = error.what();
    EXPECT_TRUE(said.starts_with(kFile)) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    return said;
  }
  return "accepted";
}

std::string refusal_of_header(const std::string& header, size_t data_bytes) {
  return refusal_of(with_length(header) + std::string(data_bytes, '\0'));
}

::testing::AssertionResult says(const std::string& said, const std::string& part) {
  if (said.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << said << "\" does not say \"" << part << "\"";
}

constexpr const char* kTwo =
    R"({{"a": {{"dtype": "F32", "shape": [2], "data_offsets": [{}, {}]}},
        "b": {{"dtype": "F32", "shape": [3], "data_offsets": [{}, {}]}}}})";

TEST(SafetensorsHeader, EntriesComeInTheOrderOfTheirBytes) {
  MemoryStorage storage;
  storage.write_all(kFile, with_length(fmt::format(kTwo, 12, 20, 0, 12)) + std::string(20, '\0'));
  CheckedReader file(storage, kFile, std::nullopt);
  const std::vector<SafetensorsEntry> entries = read_safetensors_header(file);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].tensor, (LogicalTensor{"b", at::kFloat, {3}}));
  EXPECT_EQ(entries[1].tensor, (LogicalTensor{"a", at::kFloat, {2}}));
  EXPECT_EQ(entries[1].offset - entries[0].offset, 12);
  EXPECT_EQ(entries[1].bytes, 8);
}

TEST(SafetensorsHeader, AFileOfAnotherKindIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  EXPECT_TRUE(says(refusal_of(pointer), "this is a Git LFS pointer, not the file itself; fetch the file with git lfs"));
  EXPECT_TRUE(says(refusal_of("<!DOCTYPE html><html>"), "this is an HTML page"));
  EXPECT_TRUE(says(refusal_of(std::string("GGUF\3\0\0\0", 8)), "this is a model file of llama.cpp (GGUF)"));
  EXPECT_TRUE(says(refusal_of(std::string("\x80\2}q\0.", 6)), "this is a pickle of Python"));
  try {
    read_index(pointer);
    FAIL();
  } catch (const DamageError& error) {
    EXPECT_TRUE(says(error.what(), ".metadata: this is a Git LFS pointer"));
  }
}

TEST(SafetensorsHeader, ALieAboutSizesIsSaid) {
  EXPECT_EQ(refusal_of_header(fmt::format(kTwo, 0, 8, 8, 20), 20), "accepted") << "without a lie";
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 0, 8, 8, 24), 24), "tensor b does not fill its shape"));
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 0, 8, 8, 20), 16), "tensor b is outside the file"));
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 8, 0, 8, 20), 20), "tensor a is outside the file"));
}

TEST(SafetensorsHeader, TensorsThatShareBytesAndBytesOfNoTensorAreSaid) {
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 0, 8, 4, 16), 16), "tensor b overlaps another"));
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 0, 8, 12, 24), 24), "the bytes before tensor b belong to none"));
  EXPECT_TRUE(says(refusal_of_header(fmt::format(kTwo, 0, 8, 8, 20), 21), "its last 1 bytes belong to no tensor"));
}

TEST(SafetensorsHeader, OneLongerThanTheFileOrThanTheFormatAllowsIsNotRead) {
  EXPECT_TRUE(says(refusal_of(with_length(1000, "{}")), "the header is longer than the file"));
  EXPECT_TRUE(says(refusal_of(with_length(UINT64_MAX, "{}")), "the header is longer than the file"));
  std::string large = with_length(100'000'001, "{}");
  large.resize(100'000'009, ' ');
  EXPECT_TRUE(says(refusal_of(large), "more than the format's 100 MB"));
}

TEST(SafetensorsHeader, WhatIsNoJsonOfTheFormIsSaid) {
  EXPECT_TRUE(says(refusal_of_header("{\"a\": ", 0), "not a JSON object"));
  EXPECT_TRUE(says(refusal_of_header("[]", 0), "not a JSON object"));
  EXPECT_TRUE(says(refusal_of_header(R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4),
                   "entry for tensor a cannot be read"));
  EXPECT_TRUE(says(refusal_of_header(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}})", 4),
                   "entry for tensor a cannot be read"));
  EXPECT_TRUE(says(refusal_of_header(R"({"a": {"dtype": "F77", "shape": [1], "data_offsets": [0, 4]}})", 4),
                   "tensor a has the unknown type F77"));
  EXPECT_TRUE(says(refusal_of_header(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                         "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})",
                                     1),
                   "two entries for a"));
}

TEST(SafetensorsHeader, HundredsOfThousandsOfNamesAreRead) {
  std::string header = "{";
  for (int i = 0; i < 300'000; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", i > 0 ? "," : "", i);
  }
  MemoryStorage storage;
  storage.write_all(kFile, with_length(header + "}"));
  CheckedReader file(storage, kFile, std::nullopt);
  EXPECT_EQ(read_safetensors_header(file).size(), 300'000u);
}

TEST(SafetensorsHeader, WhatIsWrittenIsRead) {
  const std::vector<LogicalTensor> tensors{
      {"w", at::kBFloat16, {3, 5}}, {"scalar", at::kFloat, {}}, {"n", at::kLong, {2}}};
  const std::string header = safetensors_header(tensors, {{"format", "pt"}});
  MemoryStorage storage;
  storage.write_all(kFile, header + std::string(30 + 4 + 16, '\1'));
  CheckedReader file(storage, kFile, std::nullopt);
  const std::vector<SafetensorsEntry> entries = read_safetensors_header(file);
  ASSERT_EQ(entries.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(entries[i].tensor, tensors[i]);
  EXPECT_EQ(entries[0].offset, static_cast<int64_t>(header.size()));
}

}  // namespace
}  // namespace titan
