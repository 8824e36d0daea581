#include "titan/base/file_kind.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "titan/base/json.h"

namespace titan {
namespace {

using namespace std::string_literals;

std::string zip_of(const std::string& name) {
  std::string head = "PK\x03\x04"s + std::string(26, '\0');
  head[26] = static_cast<char>(name.size());
  return head + name + "data";
}

TEST(FileKind, IsKnownByTheFirstBytes) {
  const std::string tar = "folder/name"s + std::string(246, '\0') + "ustar\0"s + std::string(300, '\0');
  const std::vector<std::pair<std::string, FileKind>> files{
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", FileKind::lfs_pointer},
      {"/annex/objects/SHA256E-s3--00.jsonl\n", FileKind::annex_pointer},
      {"\x1F\x8B\x08\0"s, FileKind::gzip},
      {"\x50\x2A\x4D\x18\x04\0\0\0"s, FileKind::zstd},
      {"%PDF-1.7\n%\xE2\xE3\n1 0 obj\n", FileKind::pdf},
      {"<!-- saved -->\n<!-- twice --><html>", FileKind::html},
      {"\x28\xB5\x2F\xFD\x04"s, FileKind::zstd},
      {"\xFD"s + "7zXZ\0\0"s, FileKind::xz},
      {"BZh91AY&SY\x01"s, FileKind::bzip2},
      {zip_of("folder/a.jsonl"), FileKind::zip},
      {zip_of("archive/data.pkl"), FileKind::torch_zip},
      {zip_of("x.npy"), FileKind::numpy},
      {tar, FileKind::tar},
      {"PAR1\x15\x04\x15"s, FileKind::parquet},
      {"ARROW1\0\0\xFF"s, FileKind::arrow},
      {"\xFF\xFF\xFF\xFF\xF8\x01\0\0\x10\0\0\0\0\0\x0A\0"s, FileKind::arrow},
      {"GGUF\x03\0\0\0"s, FileKind::gguf},
      {"\x80\x02}q\0."s, FileKind::pickle},
      {"\x80\x04\x95\x10"s, FileKind::pickle},
      {"\x40\0\0\0\0\0\0\0{\"weight\": "s, FileKind::safetensors},
      {"(dp0\nS'text'\np1\n", FileKind::pickle},
      {"(lp12\n", FileKind::pickle},
      {"ccopy_reg\n_reconstructor\np0\n", FileKind::pickle},
      {"cnumpy.core.multiarray\n_reconstruct\n", FileKind::pickle},
      {"]q\0(K\1"s, FileKind::pickle},
      {"Rar!\x1A\x07\x01\0"s, FileKind::rar},
      {"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0\x04"s, FileKind::lzma},
      {"\x5D\0\0\x18\0\x10\0\0\0\0\0\0\0\0\x04"s, FileKind::lzma},
      {"LZIP\x01\x0C\0"s, FileKind::lzip},
      {"\xFF\x06\0\0sNaPpY"s, FileKind::snappy},
      {"\x89PNG\r\n\x1A\n\0"s, FileKind::image},
      {"\xFF\xD8\xFF\xE0\0\x10JFIF"s, FileKind::image},
      {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"s, FileKind::office},
      {"\x89HDF\r\n\x1A\n\0"s, FileKind::hdf5},
      {"MMIDIDX\0\0\x01"s, FileKind::megatron_index},
      {"\n<!DOCTYPE html>\n<html>", FileKind::html},
      {"<html><head>", FileKind::html},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", FileKind::failed_download},
      {"Entry not found", FileKind::failed_download},
      {R"({"config": {"default_vocab_size": 131072, "default_num_special_tokens": 1000}})", FileKind::tekken}};
  for (const auto& [bytes, kind] : files) {
    EXPECT_EQ(static_cast<int>(kind_of(bytes)), static_cast<int>(kind)) << bytes.substr(0, 40);
    EXPECT_NE(describe_kind(kind).find("this is "), std::string::npos);
  }
}

TEST(FileKind, TextIdsAndJsonAreOfNoOtherKind) {
  for (const std::string& bytes :
       {""s, "{\"text\": \"a\"}"s, "[1, 2]"s, "PAR1 is how a file begins"s, "GGUF, a format"s, "BZh is short"s,
        "Entry not found in the book of "s + std::string(300, 'a'), "\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0"s,
        "PK says hello"s, "(dplyr is a package)\n"s, "(lpx\n"s, "cat\ndog\n"s, "copy_reg\n"s, "]quoted\n"s,
        "]\0\0\0\0\0\0\0\0\0\0\0\0\0\0"s, "GIF89a is a format"s, "LZIP packs"s, "\x80"s, "x<html>"s}) {
    EXPECT_EQ(static_cast<int>(kind_of(bytes)), static_cast<int>(FileKind::other)) << bytes.substr(0, 40);
  }
}

TEST(FileKind, ARefusalNamesTheFileItsKindAndTheWayOut) {
  try {
    refuse_kind(FileKind::lfs_pointer, "a/b.json", ExitCode::bad_data);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(),
              "a/b.json: this is a Git LFS pointer, not the file itself; fetch the file with git lfs "
              "pull, or download it"s);
    EXPECT_EQ(error.code(), ExitCode::bad_data);
  }
  refuse_kind(FileKind::gzip, "a.gz", ExitCode::bad_data, {FileKind::gzip});
  refuse_kind(FileKind::other, "a", ExitCode::bad_data);
}

TEST(FileKind, ATextOfAnotherKindIsReadOnlyWhereThatIsExpected) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan-kind-XXXXXX").string();
  const std::filesystem::path page = std::filesystem::path(::mkdtemp(folder.data())) / "page.txt";
  std::ofstream(page) << "<html>";
  EXPECT_EQ(read_text_file(page, ExitCode::bad_data, 100, kKindsOfText), "<html>");
  EXPECT_THROW(read_text_file(page, ExitCode::bad_data), Error);
  EXPECT_THROW(read_text_file(page, ExitCode::bad_data, 2, kKindsOfText), Error);
  std::filesystem::remove_all(folder);
}

TEST(Json, DepthIsCountedOutsideStrings) {
  const auto nested = [](int levels) { return std::string(levels, '[') + "\"[[\\\"[\"" + std::string(levels, ']'); };
  EXPECT_TRUE(is_shallow_json(nested(kDeepestJson)));
  EXPECT_FALSE(is_shallow_json(nested(kDeepestJson + 1)));
  EXPECT_TRUE(is_shallow_json(std::string("[]{}[]") + nested(kDeepestJson)));
  EXPECT_THROW(parse_json(nested(1'000'000)), nlohmann::json::out_of_range);
}

TEST(FileKind, OfWhatIsNoFileNothingIsRead) {
  EXPECT_EQ(static_cast<int>(file_kind_at("/dev/zero")), static_cast<int>(FileKind::other));
  EXPECT_EQ(static_cast<int>(file_kind_at("/nowhere")), static_cast<int>(FileKind::other));
}

TEST(Json, NumbersThatJsonDoesNotHaveBecomeEmptyObjectsOfTheirLength) {
  std::string text = R"({"a": NaN, "b": [-Infinity,Infinity], "NaN": "1e999 \"NaN", "c": 1e999, "d": 1e-999, "e": -3})";
  const std::string expected =
      R"({"a": {} , "b": [{}       ,{}      ], "NaN": "1e999 \"NaN", "c": {}   , "d": 1e-999, "e": -3})";
  EXPECT_TRUE(replace_odd_numbers(text));
  EXPECT_EQ(text, expected);
  EXPECT_FALSE(replace_odd_numbers(text));
  EXPECT_EQ(parse_json(R"({"scale": NaN, "size": 3})")["size"], 3);
  EXPECT_TRUE(parse_json(R"({"scale": NaNs})", false).is_discarded());
  EXPECT_THROW(parse_json(R"({"scale": NaN, })"), nlohmann::json::parse_error);
}

TEST(Json, APlaceIsLineAndColumnInCharacters) {
  EXPECT_EQ(json_place("abc", 0), "1:1");
  EXPECT_EQ(json_place("a\nb\u00e9c", 5), "2:3");
  EXPECT_EQ(json_place("a\n", 99), "2:1");
}

}  // namespace
}  // namespace titan
