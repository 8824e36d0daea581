#include "src/checkpoint/zip.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <random>
#include <string>

namespace titan {
namespace {

TEST(Crc32, IsZlibsForEveryLengthStartAndSplit) {
  std::mt19937_64 generator(1);
  std::string bytes(5000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  const auto expected = [](std::string_view of) {
    return static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(of.data()), static_cast<uInt>(of.size())));
  };
  for (size_t size = 0; size < 2000; ++size) {
    const std::string_view part = std::string_view(bytes).substr(size % 17, size);
    ASSERT_EQ(zip_checksum(0, part), expected(part)) << size;
    const size_t split = generator() % (size + 1);
    ASSERT_EQ(zip_checksum(zip_checksum(0, part.substr(0, split)), part.substr(split)), expected(part)) << size;
  }
  EXPECT_EQ(zip_checksum(0, "123456789"), 0xCBF43926u);  // the check value of this CRC
}

}  // namespace
}  // namespace titan
