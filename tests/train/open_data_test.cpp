#include "titan/train/open_data.h"

#include <gtest/gtest.h>

#include <set>

#include "src/corpus/token_source.h"
#include "support/foreign_ids.h"
#include "support/job.h"

namespace titan {
namespace {

/// A corpus of Megatron-LM: 20 entries of five ids, all of them the number of the entry.
std::string write_corpus(const TestFolder& folder, const std::string& name) {
  test::IdDocuments entries;
  for (int64_t i = 0; i < 20; ++i) entries.emplace_back(5, i);
  folder.write(name + ".bin", test::id_bytes<int32_t>(entries));
  folder.write(name + ".idx", test::index_of(entries, 4, 4).bytes());
  return folder / name;
}

std::set<int32_t> ids_of(ChunkSource& chunks) {
  std::set<int32_t> ids;
  for (Chunk chunk; chunks.next(chunk);) ids.insert(chunk.tokens.begin(), chunk.tokens.end());
  return ids;
}

std::set<int32_t> numbers(int32_t first, int32_t end) {
  std::set<int32_t> all;
  for (int32_t i = first; i < end; ++i) all.insert(i);
  return all;
}

class MegatronParts : public testing::Test {
 protected:
  JobConfig config_for(const std::string& validation) const {
    return job_config({"--training.dataset=text", "--training.dataset_path=" + corpus_, "--data.order=megatron",
                       "--data.megatron_split=8,1,1", "--training.seq_len=4", "--training.steps=50",
                       "--training.local_batch_size=1", "--validation.enable", "--validation.dataset=text",
                       "--validation.dataset_path=" + validation});
  }
  std::set<int32_t> validated(const std::string& path) const {
    std::string description;
    return ids_of(*open_validation_chunks(config_for(path), {}, tokenizer_, {}, description));
  }

  TestFolder folder_;
  std::string corpus_ = write_corpus(folder_, "corpus");
  std::shared_ptr<const Tokenizer> tokenizer_ =
      std::make_shared<RecordedVocabulary>(100, Tokenizer::kNoId, Tokenizer::kNoId, "");
};

TEST_F(MegatronParts, TrainingAndValidationOfOneFileReadPartsThatShareNoEntry) {
  std::string description;
  const auto training = open_training_chunks(config_for(corpus_), {}, tokenizer_, {}, description);
  EXPECT_EQ(ids_of(*training), numbers(0, 16));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "samples of 4 tokens from entries 0 to 15, 3 epochs", description);
  EXPECT_EQ(validated(corpus_), numbers(16, 18));
  EXPECT_EQ(validated(corpus_ + ".bin"), numbers(16, 18));
  std::filesystem::create_symlink(corpus_ + ".bin", folder_ / "link.bin");
  std::filesystem::create_symlink(corpus_ + ".idx", folder_ / "link.idx");
  EXPECT_EQ(validated(folder_ / "link"), numbers(16, 18)) << "the same file by another name";
  EXPECT_EQ(validated(folder_ / "corp*.bin"), numbers(16, 18)) << "the same file by a glob";
}

TEST_F(MegatronParts, AFolderOfTrainingsFileAloneIsTrainingsFile) {
  const std::string folder = folder_ / "folder";
  std::filesystem::create_directory(folder);
  corpus_ = write_corpus(folder_, "folder/corpus");
  EXPECT_EQ(validated(folder), numbers(16, 18));
  EXPECT_EQ(validated(folder + "/*"), numbers(16, 18));
}

TEST_F(MegatronParts, ADescriptionSaysWhatValidationReads) {
  const auto described = [&](const std::string& path) {
    std::string description;
    BatchOptions options;
    options.chunks.infinite = false;
    open_validation_chunks(config_for(path), {}, tokenizer_, options, description);
    return description;
  };
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "the second part of data.megatron_split of " + corpus_ + ".bin",
                      described(corpus_));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "from entries 16 to 17, ", described(corpus_));
  const std::string other = write_corpus(folder_, "held_out");
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "all entries of " + other + ".bin", described(other));
  folder_.write("held_out.ds", test::id_bytes<uint16_t>({{7, 3, 7, 3, 7}}));
  folder_.write("held_out.ds.index", test::datatrove_index({{7, 3, 7, 3, 7}}));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "the documents of " + (folder_ / "held_out.ds"),
                      described(folder_ / "held_out.ds"));
}

TEST_F(MegatronParts, AnotherFileOfMegatronIsValidatedOnAsAWholeAndAnyOtherInItsOwnOrder) {
  EXPECT_EQ(validated(write_corpus(folder_, "held_out")), numbers(0, 20));
  folder_.write("held_out.ds", test::id_bytes<uint16_t>({{7, 3, 7, 3, 7}, {5, 5, 5, 5, 5}}));
  folder_.write("held_out.ds.index", test::datatrove_index({{7, 3, 7, 3, 7}, {5, 5, 5, 5, 5}}));
  BatchOptions options;
  options.chunks.infinite = false;
  const JobConfig config = config_for(folder_ / "held_out.ds");
  std::string description;
  const auto chunks = open_validation_chunks(config, {}, tokenizer_, options, description);
  Chunk chunk;
  ASSERT_TRUE(chunks->next(chunk));
  EXPECT_EQ(chunk.tokens, (std::vector<int32_t>{7, 3, 7, 3, 7}));
}

}  // namespace
}  // namespace titan
