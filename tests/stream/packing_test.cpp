// How documents become rows: packed without loss or by document, with labels and bounds.
#include <gtest/gtest.h>

#include "support/corpora.h"
#include "support/texts.h"
#include "titan/stream/batch_stream.h"
#include "titan/stream/chunk_stream.h"

namespace titan {
namespace {

TEST(Packing, WithoutLossEveryTokenIsAnInputOnceAndALabelOnce) {
  const std::vector<std::string> texts = test::random_texts(60, 40);
  std::vector<int32_t> stream;
  for (const std::string& text : texts) {
    for (const int32_t id : test::byte_tokenizer()->encode(text, true, true)) stream.push_back(id);
  }
  ChunkOptions options;
  options.sequence_length = 16;
  options.packing = ChunkPacking::lossless;
  options.infinite = false;
  ChunkStream chunks(std::make_unique<test::ListSource>(texts), test::byte_tokenizer(), options);
  Chunk chunk;
  size_t at = 0;
  for (; chunks.next(chunk); at += 16) {
    ASSERT_EQ(chunk.tokens,
              std::vector<int32_t>(stream.begin() + std::ptrdiff_t(at), stream.begin() + std::ptrdiff_t(at) + 17));
  }
  EXPECT_EQ(at, (stream.size() - 1) / 16 * 16);
}

TEST(Packing, ByDocumentNoLabelReachesIntoTheNextOneAndValidTokensAreCounted) {
  ChunkOptions options;
  options.sequence_length = 8;
  options.packing = ChunkPacking::lossless;
  options.infinite = false;
  // BOS a b EOS | BOS c d e f EOS | …: 4 and 6 tokens.
  ChunkStream chunks(std::make_unique<test::ListSource>(std::vector<std::string>{"ab", "cdef", "ghijk", "l", "mnopqr"}),
                     test::byte_tokenizer(), options);
  BatchPlan plan;
  plan.sequence_length = 8;
  plan.local_batch = 3;
  const StepBatch batch = *assemble_step(chunks, plan, {.restart_positions = true, .labels_end_with_document = true});
  const MicroBatch& rows = batch.microbatches[0];
  ASSERT_EQ(batch.samples, 3);
  constexpr int64_t kBos = 256, kEos = 257, kNone = kIgnoredLabel;
  EXPECT_EQ(rows.tokens, (std::vector<int64_t>{kBos, 'a',  'b',  kEos, kBos, 'c', 'd', 'e',  //
                                               'f',  kEos, kBos, 'g',  'h',  'i', 'j', 'k',  //
                                               kEos, kBos, 'l',  kEos, kBos, 'm', 'n', 'o'}));
  EXPECT_EQ(rows.labels, (std::vector<int64_t>{'a',   'b',   kEos, kNone, 'c', 'd', 'e', 'f',   //
                                               kEos,  kNone, 'g',  'h',   'i', 'j', 'k', kEos,  //
                                               kNone, 'l',   kEos, kNone, 'm', 'n', 'o', 'p'}));
  EXPECT_EQ(rows.positions, (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3,  //
                                                  0, 1, 0, 1, 2, 3, 4, 5,  //
                                                  0, 0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(rows.document_bounds, (std::vector<std::vector<int32_t>>{{0, 4}, {0, 2}, {0, 1, 4}}));
  EXPECT_EQ(batch.valid_tokens,
            std::count_if(rows.labels.begin(), rows.labels.end(), [](int64_t l) { return l >= 0; }));
}

TEST(Packing, ADocumentThatEndsWithTheRowLosesItsLastLabel) {
  ChunkOptions options;
  options.sequence_length = 4;
  options.packing = ChunkPacking::lossless;
  ChunkStream chunks(std::make_unique<test::ListSource>(std::vector<std::string>{"ab", "cd"}), test::byte_tokenizer(),
                     options);
  BatchPlan plan;
  plan.sequence_length = 4;
  const StepBatch batch = *assemble_step(chunks, plan, {.restart_positions = true, .labels_end_with_document = true});
  EXPECT_EQ(batch.microbatches[0].labels, (std::vector<int64_t>{'a', 'b', 257, kIgnoredLabel}));
  EXPECT_EQ(batch.valid_tokens, 3);
}

}  // namespace
}  // namespace titan
