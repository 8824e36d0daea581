// torchtitan's count of documents and token buffer, found in the corpus: the stream resumes with the very next token.
#include "titan/stream/chunk_stream.h"

#include <gtest/gtest.h>

#include "support/corpora.h"
#include "support/texts.h"

namespace titan {
namespace {

constexpr int64_t kChunkLength = 16;

/// torchtitan, step by step: documents into a buffer, chunks out of it.
struct Loader {
  std::vector<std::string> texts;
  std::vector<int32_t> buffer;
  int64_t samples = 0;

  std::vector<int32_t> next() {
    while (std::ssize(buffer) < kChunkLength + 1) {
      if (samples == std::ssize(texts)) samples = 0;
      for (const int32_t id : test::byte_tokenizer()->encode(texts[static_cast<size_t>(samples)], true, true)) {
        buffer.push_back(id);
      }
      ++samples;
    }
    std::vector<int32_t> chunk(buffer.begin(), buffer.begin() + kChunkLength + 1);
    buffer.erase(buffer.begin(), buffer.begin() + kChunkLength + 1);
    return chunk;
  }
};

TEST(FindPosition, TheStreamGoesOnWhereTheOtherProgramWas) {
  const std::vector<std::string> texts = test::random_texts(200, 60);
  Loader loader{texts, {}, 0};
  int64_t found = 0;
  for (int chunk = 0; chunk < 500; ++chunk) {
    const bool again = loader.samples <= 4 && chunk > 10;
    test::ListSource source(texts);
    const FoundPosition position = find_position(source, *test::byte_tokenizer(), loader.samples, loader.buffer);
    if (!position.state) {
      EXPECT_TRUE(again) << position.problem;
    } else {
      ++found;
      ChunkStream stream(std::make_unique<test::ListSource>(texts), test::byte_tokenizer(),
                         {.sequence_length = kChunkLength});
      stream.restore(*position.state);
      Loader other = loader;
      for (int i = 0; i < 5; ++i) {
        Chunk mine;
        ASSERT_TRUE(stream.next(mine));
        ASSERT_EQ(mine.tokens, other.next()) << "chunk " << chunk << " + " << i;
      }
    }
    loader.next();
  }
  EXPECT_GT(found, 480);
}

TEST(FindPosition, AnotherCorpusOrOneTooShortIsSaid) {
  Loader loader{test::random_texts(50, 60), {}, 0};
  for (int i = 0; i < 20; ++i) loader.next();
  test::ListSource other(test::random_texts(50, 60, /*seed=*/2));
  EXPECT_EQ(find_position(other, *test::byte_tokenizer(), loader.samples, loader.buffer).problem,
            "the tokens left over are not those that this corpus and tokenizer give there");
  test::ListSource few({"a", "b"});
  EXPECT_EQ(find_position(few, *test::byte_tokenizer(), loader.samples, loader.buffer).problem,
            "the corpus holds 2 documents, and " + std::to_string(loader.samples) + " had been read");
  const std::vector<int32_t> inside{'x', 257};
  EXPECT_EQ(find_position(few, *test::byte_tokenizer(), 0, inside).problem,
            "the corpus had just restarted, and the remaining tokens belong to the previous pass");
}

}  // namespace
}  // namespace titan
