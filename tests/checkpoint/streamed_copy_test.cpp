#include "titan/checkpoint/tensor_source.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace titan {
namespace {

TEST(StreamedCopy, CopiesEveryLengthFromAndToAnyPlaceAndNothingBeside) {
  std::mt19937_64 generator(1);
  std::string source(size_t{5} << 20, '\0');
  for (char& byte : source) byte = static_cast<char>(generator());
  std::vector<size_t> lengths;
  for (size_t length = 0; length < 300; ++length) lengths.push_back(length);
  for (const size_t length : {size_t{1} << 20, (size_t{4} << 20) + 77}) lengths.push_back(length);
  for (const size_t length : lengths) {
    const size_t from = generator() % 80, to = generator() % 80;
    std::string target(to + length + 80, '~');
    std::string expected = target;
    expected.replace(to, length, source, from, length);
    copy_streamed(target.data() + to, source.data() + from, length);
    ASSERT_TRUE(target == expected) << length << " from " << from << " to " << to;
  }
}

}  // namespace
}  // namespace titan
