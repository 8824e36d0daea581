#include "titan/text/tokenizer_tools.h"

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>
#include <streambuf>

#include "support/checkout.h"
#include "support/files.h"

namespace titan {
namespace {

std::shared_ptr<const Tokenizer> stories_model() {
  return open_tokenizer(checkout() / "configs/tokenizers/stories.model");
}

TEST(TokenizerTools, EncodingAndDecodingAreInverse) {
  std::string text = "Where is my kite? \xE6\xBC\xA2\n";
  std::istringstream in(text);
  std::ostringstream ids, back;
  encode_stream(*stories_model(), {.bos = false, .eos = false}, in, ids);
  std::istringstream ids_in(ids.str());
  decode_stream(*stories_model(), ids_in, back);
  EXPECT_EQ(back.str(), text);
}

/// Zeros without end.
struct Endless : std::streambuf {
  std::array<char, 65536> block{};
  int_type underflow() override {
    setg(block.data(), block.data(), block.data() + block.size());
    return traits_type::to_int_type(block[0]);
  }
};

TEST(TokenizerTools, ATextWithoutEndIsRefused) {
  Endless zeros;
  std::istream in(&zeros);
  std::ostringstream out;
  EXPECT_PRED_FORMAT2(test::contains,
                      test::message_of(ExitCode::bad_data, [&] { encode_stream(*stories_model(), {}, in, out); }),
                      "the text is longer than 256");
}

TEST(TokenizerTools, MeasuringPrintsOneLineForEachTime) {
  std::istringstream in("some text to encode");
  std::ostringstream out;
  encode_stream(*stories_model(), {.measure = 3}, in, out);
  std::string lines = out.str();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_PRED_FORMAT2(test::contains, lines, "MB/s");
}

}  // namespace
}  // namespace titan
