// `titan_train data tokenize` and the .bin files it makes: same ids as on the fly, the same bytes however often it was
// killed, every damage named.
#include "titan/corpus/token_file.h"
#include "support/random_sequence.h"

#include <sys/stat.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "src/corpus/encode_pipeline.h"
#include "src/corpus/text_files.h"
#include "src/corpus/token_source.h"
#include "support/files.h"
#include "support/packed.h"
#include "support/texts.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/corpus/inspect.h"
#include "titan/corpus/tokenize.h"

namespace titan {
namespace {

using test::message_of;
using test::TemporaryFolder;
namespace fs = std::filesystem;

/// A tiktoken model file whose ids are the 256 bytes, and these tokens.
std::string write_model(const TemporaryFolder& folder, const std::string& name,
                        const std::vector<std::string>& more = {}) {
  write_tiktoken_file(folder / name, test::bytes_and(more));
  return (folder / name).string();
}

std::string records(size_t count, uint32_t longest, uint64_t seed = 1) {
  std::string lines;
  for (const std::string& text : test::random_texts(count, longest, seed)) lines += "{\"text\": \"" + text + "\"}\n";
  return lines;
}

Tokenization wanted(const std::string& corpus, const std::string& model, const fs::path& output) {
  Tokenization tokenization;
  tokenization.dataset.dataset = "text";
  tokenization.dataset.path = corpus;
  tokenization.tokenizer = model;
  tokenization.output = output;
  return tokenization;
}

std::string run(const Tokenization& tokenization) {
  std::ostringstream out;
  tokenize_corpus(tokenization, out);
  return out.str();
}

/// Every document's ids, encoded on the spot.
std::vector<std::vector<int32_t>> expected_ids(const std::string& corpus, const std::string& model) {
  const auto tokenizer = open_tokenizer(model);
  TextFileSource source(corpus, "text", BadRecord::skip);
  std::vector<std::vector<int32_t>> all;
  for (Document document; source.next(document);) {
    all.emplace_back();
    tokenizer->encode_framed(document.text, true, true, all.back());
  }
  return all;
}

std::vector<std::vector<int32_t>> ids_in(const fs::path& bin) {
  TokenFile file(bin);
  std::vector<std::vector<int32_t>> all;
  for (int64_t i = 0; i < file.facts().documents; ++i) file.document(i).append_to(all.emplace_back());
  return all;
}

TEST(Tokenize, GivesTheIdsThatEncodingOnTheFlyGivesForEveryKindOfFileAndNumberOfThreads) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model", {"th", "ab"});
  folder.write("corpus/a.jsonl", records(3000, 900));
  folder.write("corpus/b.jsonl.gz", test::gzip(records(200, 50, 2)));
  folder.write("corpus/c.txt.zst", test::zstd("a text with the letters abab"));
  folder.write("corpus/d.txt", "another\n");
  const std::string corpus = (folder / "corpus").string();
  for (const int64_t threads : {1, 3}) {
    Tokenization tokenization = wanted(corpus, model, folder / "out.bin");
    tokenization.threads = threads;
    tokenization.overwrite = true;
    EXPECT_PRED_FORMAT2(test::contains, run(tokenization), "3,202 documents");
    EXPECT_EQ(ids_in(folder / "out.bin"), expected_ids(corpus, model));
  }
  EXPECT_EQ(TokenFile(folder / "out.bin").facts().token_bytes, 2);
  EXPECT_FALSE(fs::exists(folder / "out.bin.part"));
  EXPECT_FALSE(fs::exists(folder / "out.bin.progress"));
}

TEST(Tokenize, ItsOwnFilesAreRegularFiles) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model", {"th"});
  const std::string corpus = folder.write("a.jsonl", records(3, 1));
  const fs::path target = folder.write("target", "kept");
  for (const char* name : {"out.bin.part", "out.bin.ends.part", "out.bin.hashes.part"}) {
    const Tokenization tokenization = wanted(corpus, model, folder / "out.bin");
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    EXPECT_PRED_FORMAT2(test::contains, test::message_of(ExitCode::storage, [&] { run(tokenization); }),
                        std::string(name) + ": it is a named pipe, and the program writes only regular files there");
    fs::remove(folder / name);
    fs::create_symlink(target, folder / name);
    EXPECT_PRED_FORMAT2(test::contains, test::message_of(ExitCode::storage, [&] { run(tokenization); }),
                        std::string(name) + ": it is a symbolic link");
    fs::remove(folder / name);
  }
  EXPECT_EQ(read_file(target), "kept");
}

TEST(Tokenize, AVocabularyOfMoreThan65536IdsTakesFourBytes) {
  TemporaryFolder folder;
  std::vector<std::string> more;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) more.push_back({static_cast<char>(a), static_cast<char>(b)});
  }
  const std::string model = write_model(folder, "m.model", more);
  const std::string corpus = folder.write("a.jsonl", records(50, 100));
  run(wanted(corpus, model, folder / "out.bin"));
  EXPECT_EQ(TokenFile(folder / "out.bin").facts().token_bytes, 4);
  EXPECT_EQ(ids_in(folder / "out.bin"), expected_ids(corpus, model));
}

/// Stands for a kill: nothing after it is done.
struct Killed {};

TEST(Tokenize, KilledAnywhereItGoesOnAndGivesTheSameBytes) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model", {"th", "ab"});
  const std::string corpus = folder.write("a.jsonl", records(20000, 700));
  run(wanted(corpus, model, folder / "whole.bin"));
  Tokenization tokenization = wanted(corpus, model, folder / "out.bin");
  tokenization.save_bytes = 1;
  int kills = 0;
  for (int after = 1; kills < 100; after = after % 3 + 1) {
    int saves = 0;
    tokenization.on_saved = [&] {
      if (++saves == after) throw Killed{};
    };
    try {
      const std::string said = run(tokenization);
      EXPECT_PRED_FORMAT2(test::contains, said, "resuming after ");
      break;
    } catch (const Killed&) {
      ++kills;
      std::ofstream(folder / "out.bin.part", std::ios::app) << "half of what came next";
      std::ofstream(folder / "out.bin.ends.part", std::ios::app) << "more";
    }
  }
  EXPECT_GE(kills, 3);
  EXPECT_EQ(read_file(folder / "out.bin"), read_file(folder / "whole.bin"));
  EXPECT_EQ(read_file(folder / "out.bin.idx"), read_file(folder / "whole.bin.idx"));
}

TEST(Tokenize, TheNameOfACorpusNeedNotBeUtf8) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model", {"th"});
  const std::string corpus = folder.write("a\xFF.jsonl", records(2000, 700));
  Tokenization tokenization = wanted(corpus, model, folder / "out\xFF.bin");
  tokenization.save_bytes = 1;
  tokenization.on_saved = [] { throw Killed{}; };
  EXPECT_THROW(run(tokenization), Killed);
  tokenization.on_saved = [] {};
  EXPECT_PRED_FORMAT2(test::contains, run(tokenization), "resuming after ");
  EXPECT_EQ(ids_in(folder / "out\xFF.bin"), expected_ids(corpus, model));
}

TEST(Tokenize, WhileOneWritesAnotherIsRefusedAndTheFileIsWhole) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model", {"th", "ab"});
  const std::string corpus = folder.write("a.jsonl", records(20000, 700));
  Tokenization first = wanted(corpus, model, folder / "out.bin");
  first.save_bytes = 1;
  int refused = 0;
  first.on_saved = [&] {
    Tokenization second = wanted(corpus, model, folder / "out.bin");
    second.overwrite = refused % 2 == 1;
    const std::string message = message_of(ExitCode::bad_config, [&] { run(second); });
    EXPECT_PRED_FORMAT2(test::contains, message, "out.bin: another titan_train is writing it: process ");
    EXPECT_PRED_FORMAT2(test::contains, message, "Wait for that one, or name another --output.");
    ++refused;
  };
  run(first);
  EXPECT_GE(refused, 2);
  EXPECT_EQ(ids_in(folder / "out.bin"), expected_ids(corpus, model));
}

TEST(Tokenize, AnOutputThatWouldBeReadAsCorpusIsRefused) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model");
  folder.write("corpus/a.jsonl", records(20, 100));
  folder.write("corpus/inner/b.jsonl", records(20, 100));
  fs::create_directories(folder / "corpus/.hidden");
  fs::create_directory_symlink(folder / "corpus", folder / "link");
  const std::string corpus = (folder / "corpus").string();
  for (const char* inside : {"corpus/x.bin", "corpus/inner/x.bin", "link/x.bin", "corpus/.hidden/../x.bin"}) {
    EXPECT_PRED_FORMAT2(test::contains,
                        message_of(ExitCode::bad_config, [&] { run(wanted(corpus, model, folder / inside)); }),
                        "it would become a part of the corpus");
    EXPECT_FALSE(fs::exists(folder / inside));
  }
  run(wanted(corpus, model, folder / "corpus/.hidden/x.bin"));
  run(wanted(corpus + "/*.jsonl", model, folder / "corpus/beside.bin"));
  EXPECT_PRED_FORMAT2(
      test::contains,
      message_of(ExitCode::bad_config, [&] { run(wanted(corpus + "/a*", model, folder / "link/ab.bin")); }),
      "it would become a part of the corpus");
}

TEST(Tokenize, KilledBetweenNameAndIndexItFinishes) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model");
  const std::string corpus = folder.write("a.jsonl", records(100, 100));
  Tokenization tokenization = wanted(corpus, model, folder / "out.bin");
  tokenization.save_bytes = 1;
  tokenization.on_saved = [] { throw Killed{}; };
  EXPECT_THROW(run(tokenization), Killed);
  fs::rename(folder / "out.bin.part", folder / "out.bin");
  tokenization.on_saved = [] {};
  run(tokenization);
  EXPECT_EQ(ids_in(folder / "out.bin"), expected_ids(corpus, model));
}

TEST(Tokenize, DoesNotOverwriteAndDoesNotGoOnWithAnothersOutput) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model"), other = write_model(folder, "n.model", {"th"});
  const std::string corpus = folder.write("a.jsonl", records(100, 100));
  run(wanted(corpus, model, folder / "out.bin"));
  auto refusal = [&](const Tokenization& tokenization) {
    return message_of(ExitCode::bad_config, [&] { run(tokenization); });
  };
  EXPECT_PRED_FORMAT2(test::contains, refusal(wanted(corpus, model, folder / "out.bin")), "it is already there");
  EXPECT_PRED_FORMAT2(test::contains, refusal(wanted(corpus, model, folder / "out.ids")), "must end in .bin");
  Tokenization tokenization = wanted(corpus, model, folder / "half.bin");
  tokenization.save_bytes = 1;
  tokenization.on_saved = [] { throw Killed{}; };
  EXPECT_THROW(run(tokenization), Killed);
  EXPECT_PRED_FORMAT2(test::contains, refusal(wanted(corpus, other, folder / "half.bin")),
                      "was begun with another tokenizer");
  const std::string elsewhere = folder.write("b.jsonl", records(101, 100));
  EXPECT_PRED_FORMAT2(test::contains, refusal(wanted(elsewhere, model, folder / "half.bin")), "b.jsonl is new");
  Tokenization another_field = wanted(corpus, model, folder / "half.bin");
  another_field.dataset.text_field = "title";
  EXPECT_PRED_FORMAT2(test::contains, refusal(another_field), "was begun with another corpus or text field");
  const auto before = fs::file_size(corpus);
  folder.write("a.jsonl", records(101, 100));
  const std::string changed = refusal(wanted(corpus, model, folder / "half.bin"));
  EXPECT_PRED_FORMAT2(test::contains, changed,
                      fmt::format("begun before the corpus changed: {} had {} bytes and now has {}", corpus,
                                  with_thousands(static_cast<int64_t>(before)),
                                  with_thousands(static_cast<int64_t>(fs::file_size(corpus)))));
  EXPECT_PRED_FORMAT2(test::contains, changed, "pass --overwrite to start again with the changed one");
}

TEST(Tokenize, BadRecordsEndItOrAreCountedAndWhatIsEmptyIsNamed) {
  TemporaryFolder folder;
  const std::string model = write_model(folder, "m.model");
  const std::string corpus = folder.write("a.jsonl", records(10, 100) + "{\n" + records(10, 100));
  Tokenization tokenization = wanted(corpus, model, folder / "out.bin");
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { run(tokenization); }), "a.jsonl:11: ");
  tokenization.dataset.bad_record = BadRecord::skip;
  tokenization.overwrite = true;
  EXPECT_PRED_FORMAT2(test::contains, run(tokenization), "1 bad records were left out");
  EXPECT_EQ(ids_in(folder / "out.bin").size(), 20u);
  const std::string blank = folder.write("blank.jsonl", "\n\n");
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_data, [&] { run(wanted(blank, model, folder / "b.bin")); }),
                      "there is no document in");
  const std::string cut = folder.write("cut.jsonl.gz", test::gzip(records(5000, 900)).substr(0, 100'000));
  EXPECT_PRED_FORMAT2(test::contains,
                      message_of(ExitCode::bad_data, [&] { run(wanted(cut, model, folder / "c.bin")); }),
                      "data are cut off");
}

class DamagedTokenFile : public testing::Test {
 protected:
  DamagedTokenFile() {
    model_ = write_model(folder_, "m.model");
    corpus_ = folder_.write("a.jsonl", records(3000, 900));
    run(wanted(corpus_, model_, bin_));
    ids_ = read_file(bin_);
    index_ = read_file(index_path(bin_));
  }
  std::string failure() {
    return message_of(ExitCode::bad_data, [&] { ids_in(bin_); });
  }
  void write(const fs::path& path, const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  TemporaryFolder folder_;
  fs::path bin_ = folder_ / "out.bin";
  std::string model_, corpus_, ids_, index_;
};

TEST_F(DamagedTokenFile, AnyFlippedBitOfTheIndexIsFound) {
  PhiloxSequence random(5);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = index_;
    const uint32_t at = random.below(static_cast<uint32_t>(damaged.size()));
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << random.below(8));
    write(index_path(bin_), damaged);
    const std::string message = failure();
    EXPECT_PRED_FORMAT2(test::contains, message, "out.bin: ");
    EXPECT_PRED_FORMAT2(test::contains, message, "titan_train data tokenize");
  }
}

TEST_F(DamagedTokenFile, ACutIndexIsFoundWhereverItIsCut) {
  for (const size_t length : {size_t{0}, size_t{7}, size_t{150}, size_t{192}, size_t{200}, index_.size() - 1}) {
    write(index_path(bin_), index_.substr(0, length));
    EXPECT_PRED_FORMAT2(test::contains, failure(), "out.bin.idx is ");
  }
  fs::remove(index_path(bin_));
  EXPECT_PRED_FORMAT2(test::contains, failure(), "it has no index beside it (out.bin.idx)");
}

TEST_F(DamagedTokenFile, DamagedIdsAreFoundWhenTheyAreReadAndTheirPlaceIsNamed) {
  std::string damaged = ids_;
  damaged[300'000] = static_cast<char>(damaged[300'000] ^ 1);
  write(bin_, damaged);
  EXPECT_PRED_FORMAT2(test::contains, failure(), "its bytes 262,144 to 524,288 are damaged");
  TokenFile file(bin_);
  EXPECT_NO_THROW(file.document(0));  // another block
}

TEST_F(DamagedTokenFile, AFileThatIsTooShortOrShrinksIsNamed) {
  write(bin_, ids_.substr(0, ids_.size() - 2));
  EXPECT_PRED_FORMAT2(test::contains, failure(), "bytes, and its index says ");
  write(bin_, ids_);
  TokenFile file(bin_);
  file.document(0);
  fs::resize_file(bin_, 4096);
  const std::string message = message_of(ExitCode::bad_data, [&] { file.document(file.facts().documents - 1); });
  EXPECT_PRED_FORMAT2(test::contains, message, "the file shrank while it was read: it had ");
}

TEST_F(DamagedTokenFile, AFileOrIndexThatIsWrittenToWhileItIsReadIsNamedThoughItsIdsAreInTheVocabulary) {
  for (const fs::path& path : {bin_, index_path(bin_)}) {
    const std::string bytes = read_file(path);
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
    TokenFile file(bin_);
    file.document(0);
    file.document(0);
    write(path, bytes);  // with the same content
    const std::string message = message_of(ExitCode::bad_data, [&] {
      while (true) file.document(0);  // the check is not made anew for each document
    });
    EXPECT_PRED_FORMAT2(test::contains, message, "out.bin: " + std::string(path == bin_ ? "the file" : "its index"));
    EXPECT_PRED_FORMAT2(test::contains, message, "was written to while it was read");
  }
}

TEST_F(DamagedTokenFile, AnIdOutsideTheVocabularyIsFoundWhereItIsCopied) {
  std::vector<uint16_t> ids{1, 2, 300};
  TokenView view{ids.data(), ids.size(), IdType::uint16, 300, &bin_};
  std::vector<int32_t> copied;
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { view.append_to(copied); }),
                      "out.bin: it holds the id 300, and its vocabulary has 300 ids");
  view.size = 2;
  copied.clear();
  view.append_to(copied);
  EXPECT_EQ(copied, (std::vector<int32_t>{1, 2}));
  const std::vector<int32_t> wide{1, -5};
  const TokenView negative{wide.data(), wide.size(), IdType::int32, 300, &bin_};
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, [&] { negative.append_to(copied); }), "it holds");
}

TEST_F(DamagedTokenFile, AnotherVocabularyIsRefusedWithBothNames) {
  TokenFileSource source("out.bin", {bin_});
  EXPECT_NO_THROW(source.check_tokenizer(*open_tokenizer(model_)));
  const auto other = open_tokenizer(write_model(folder_, "n.model", {"th"}));
  const std::string message = message_of(ExitCode::bad_data, [&] { source.check_tokenizer(*other); });
  EXPECT_PRED_FORMAT2(test::contains, message, "512 ids) than this run's tokenizer has (");
  EXPECT_PRED_FORMAT2(test::contains, message, "513 ids");
  EXPECT_PRED_FORMAT2(test::contains, message, "model.tokenizer_path");
}

TEST_F(DamagedTokenFile, FilesOfTwoVocabulariesOrOfIdsAndTextAreNoCorpus) {
  folder_.write("both/x.jsonl", "{\"text\": \"x\"}");
  Tokenization tokenization = wanted(corpus_, model_, folder_ / "both/out.bin");
  run(tokenization);
  auto open = [&] { open_dataset({.dataset = "text", .path = (folder_ / "both").string()}); };
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, open), "out.bin holds ids and x.jsonl holds text");
  fs::remove(folder_ / "both/x.jsonl");
  EXPECT_NO_THROW(open());
  run(wanted(corpus_, write_model(folder_, "n.model", {"th"}), folder_ / "both/other.bin"));
  EXPECT_PRED_FORMAT2(test::contains, message_of(ExitCode::bad_data, open), "Name files of one tokenizer");
}

TEST_F(DamagedTokenFile, StatsAndPeekTellWhatIsThere) {
  Inspection inspection;
  inspection.dataset = {.dataset = "text", .path = corpus_};
  auto stats = [&] {
    std::ostringstream out;
    describe_corpus(inspection, out);
    return out.str();
  };
  auto peek = [&] {
    std::ostringstream out;
    show_documents(inspection, out);
    return out.str();
  };
  EXPECT_PRED_FORMAT2(test::contains, stats(), "documents     3,000\n");
  EXPECT_PRED_FORMAT2(test::contains, peek(), "a.jsonl:2 (document 1, ");
  inspection.tokenizer = model_;
  const std::string tokens = with_thousands(static_cast<int64_t>(ids_.size() / 2));
  EXPECT_PRED_FORMAT2(test::contains, stats(), "tokens        " + tokens + " (");
  EXPECT_PRED_FORMAT2(test::contains, stats(), "100.0 % below        1,024 tokens\n");
  EXPECT_PRED_FORMAT2(test::contains, peek(), "256 \"<|begin_of_text|>\" · ");
  inspection.dataset.path = bin_.string();
  EXPECT_PRED_FORMAT2(test::contains, stats(), "tokens        " + tokens + " of uint16\n");
  EXPECT_PRED_FORMAT2(test::contains, peek(), "256 \"<|begin_of_text|>\" · ");
}

}  // namespace
}  // namespace titan
