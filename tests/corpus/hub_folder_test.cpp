// Folders of data sets of the hub, and files that are of another kind than their names say.
#include "src/corpus/hub_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "src/corpus/text_files.h"
#include "support/files.h"
#include "support/packed.h"

namespace titan {
namespace {

using namespace std::string_literals;
using test::contains;
using test::message_of;
using test::TemporaryFolder;

class HubFolder : public testing::Test {
 protected:
  void write(const std::string& file) { folder_.write("set/" + file, "{\"text\": \"" + file + "\"}\n"); }
  std::string set() const { return (folder_ / "set").string(); }

  /// The files that are read.
  std::vector<std::string> files() {
    TextFileSource source(set(), "text", BadRecord::error);
    notices_ = source.take_notices();
    std::vector<std::string> names;
    for (Document document; source.next(document);) names.push_back(document.text);
    return names;
  }
  std::string refusal() {
    return message_of(ExitCode::bad_data, [&] { find_text_files(set()); });
  }

  TemporaryFolder folder_;
  std::vector<std::string> notices_;
};

TEST_F(HubFolder, WhatDescribesADataSetIsNoneOfItsRecords) {
  write("data/part.jsonl");
  folder_.write("set/dataset_infos.json", "{\n \"default\": {}\n}\n");
  folder_.write("set/config.json", "{}\n");
  EXPECT_EQ(files(), std::vector<std::string>{"data/part.jsonl"});
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_PRED_FORMAT2(contains, notices_[0], "2 files of other kinds are left out, such as config.json");
}

TEST_F(HubFolder, OfItsSplitsTheOneForTrainingIsReadAndThatIsSaid) {
  folder_.write("set/dataset_infos.json", "{}");
  for (const char* name : {"data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-0.jsonl",
                           "validation/trained.jsonl"}) {
    write(name);
  }
  EXPECT_EQ(files(), (std::vector<std::string>{"data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"}));
  EXPECT_PRED_FORMAT2(contains, notices_.front() + notices_.back(), "the split train is read (2 of 4 files)");
  std::filesystem::remove(folder_ / "set/dataset_infos.json");
  EXPECT_EQ(files().size(), 2u) << "names tell splits of other folders, too";
  EXPECT_PRED_FORMAT2(contains, notices_.front() + notices_.back(),
                      "the names of its files tell splits, as to datasets");
  std::filesystem::remove_all(folder_ / "set");
  for (const char* name : {"training_notes.jsonl", "training.jsonl", "contest.jsonl"}) write(name);
  EXPECT_EQ(files().size(), 3u) << "a plain folder is read as a whole";
}

TEST_F(HubFolder, AFormerDescriptionIsNotPassedOver) {
  write("a.jsonl");
  folder_.write("set/.huggingface.yaml", "configs: []\n");
  EXPECT_PRED_FORMAT2(contains, refusal(), ".huggingface.yaml describes this data set, and it is not read here");
}

TEST_F(HubFolder, TextsOfADescribedSetAreRefusedSinceTheirLinesWouldBeRecords) {
  folder_.write("set/train.txt", "a\nb\n");
  folder_.write("set/test.txt", "c\n");
  EXPECT_EQ(files(), std::vector<std::string>{"a\nb\n"});
  folder_.write("set/README.md", "---\nlicense: mit\n---\n");
  EXPECT_PRED_FORMAT2(contains, refusal(), "train.txt: datasets makes each line of a text of the hub a record");
}

TEST_F(HubFolder, WithoutASplitForTrainingOneIsReadAndSeveralAreRefused) {
  folder_.write("set/README.md", "---\nlicense: mit\ndataset_info:\n  features: []\n---\nA set.\n");
  write("test.jsonl");
  EXPECT_EQ(files(), std::vector<std::string>{"test.jsonl"});
  write("dev.jsonl");
  EXPECT_PRED_FORMAT2(contains, refusal(), "has the splits validation, test and none for training; name the files");
}

TEST_F(HubFolder, ShardsOfSeveralSplitsWithoutOneForTrainingAreRefused) {
  for (const char* split : {"test_sft", "train_sft"}) {
    write((std::string("data/") + split + "-00000-of-00001.jsonl").c_str());
  }
  EXPECT_PRED_FORMAT2(contains, refusal(), "and none for training; name the files");
}

TEST_F(HubFolder, TheFilesThatItsReadmeNamesAreRead) {
  for (const char* name : {"en/a.jsonl", "en/b.jsonl", "en/test.jsonl", "de/a.jsonl"}) write(name);
  const auto readme = [&](const std::string& configs) {
    folder_.write("set/README.md", "---\nlicense: mit\nconfigs:\n" + configs + "tags:\n- x\n---\n# A set\n");
  };
  readme(
      "- config_name: en\n  data_files:\n  - split: train\n    path: \"en/[ab].jsonl\"\n  - split: test\n    path: "
      "en/test.jsonl\n");
  EXPECT_EQ(files(), (std::vector<std::string>{"en/a.jsonl", "en/b.jsonl"}));
  EXPECT_PRED_FORMAT2(contains, notices_.front(), "the configuration en of README.md, the split train is read (2 of 4");
  readme("  - config_name: de\n    data_files: de/*.jsonl\n");
  EXPECT_EQ(files(), std::vector<std::string>{"de/a.jsonl"});
  readme(
      "- config_name: en\n  data_files: en/*\n- config_name: de\n  default: true\n  data_files:\n  - split: train\n    "
      "path:\n    - de/a.jsonl\n    - en/b.jsonl\n");
  EXPECT_EQ(files(), (std::vector<std::string>{"de/a.jsonl", "en/b.jsonl"}));
  readme("- config_name: en\n  data_files: en/*\n- config_name: de\n  data_files: de/*\n");
  EXPECT_PRED_FORMAT2(contains, refusal(), "README.md names the configurations en, de, of which none is the default");
  readme("- config_name: en\n  data_files: {train: a.jsonl}\n");
  EXPECT_PRED_FORMAT2(contains, refusal(), "which is not followed here; name the files with a glob");
}

TEST_F(HubFolder, AReadmeWithAByteOrderMarkIsReadAsOneWithout) {
  write("en/a.jsonl");
  write("de/a.jsonl");
  folder_.write("set/README.md", "\xEF\xBB\xBF---\nconfigs:\n- config_name: de\n  data_files: de/*\n---\n");
  EXPECT_EQ(files(), std::vector<std::string>{"de/a.jsonl"});
}

TEST_F(HubFolder, APartOfADataSetIsRefusedWithTheFolderThatCanBeNamed) {
  write("sample/10BT/a.jsonl");
  folder_.write("set/README.md",
                "---\nconfigs:\n- config_name: default\n  data_files: data/*/*\n- config_name: sample-10BT\n"
                "  data_files: sample/10BT/*\n- config_name: sample-100BT\n  data_files: sample/100BT/*\n---\n");
  EXPECT_PRED_FORMAT2(contains, refusal(),
                      "datasets finds no file for the configuration default of README.md, the split train (its other "
                      "configurations are sample-10BT, sample-100BT); there are files in " +
                          set() +
                          "/sample/10BT: give such a folder itself as the corpus, or name the files with a glob");
  EXPECT_EQ(find_text_files(set() + "/sample/10BT").files.size(), 1u);
}

TEST_F(HubFolder, OfTheHubsCacheTheRevisionOfMainIsRead) {
  const std::string cache = "set/datasets--a--b/";
  for (const char* revision : {"aaaa", "bbbb"}) {
    folder_.write(cache + "blobs/" + revision, std::string("{\"text\": \"") + revision + "\"}\n");
    for (const char* name : {"en/a.jsonl", "de/a.jsonl"}) {
      const std::filesystem::path link = folder_ / (cache + "snapshots/" + revision + "/" + name);
      std::filesystem::create_directories(link.parent_path());
      std::filesystem::create_symlink(std::string("../../../blobs/") + revision, link);
    }
    folder_.write(cache + "snapshots/" + revision + "/README.md",
                  "---\nconfigs:\n- config_name: de\n  data_files: de/*\n---\n");
  }
  const std::filesystem::path folder = folder_ / "set/datasets--a--b";
  const auto of = [](const std::filesystem::path& path) { return find_text_files(path.string()); };
  const auto refusal_of = [&](const std::filesystem::path& path) {
    return message_of(ExitCode::bad_data, [&] { of(path); });
  };
  EXPECT_PRED_FORMAT2(contains, refusal_of(folder), "the revisions aaaa, bbbb, and none is named by refs/main");
  folder_.write(cache + "refs/main", "bbbb\n");
  for (const std::filesystem::path& path : {folder, folder / "", folder / "snapshots"}) {
    const TextFiles found = of(path);
    EXPECT_EQ(found.files, std::vector<std::filesystem::path>{folder / "snapshots/bbbb/de/a.jsonl"});
    EXPECT_PRED_FORMAT2(contains, found.notices.back(), "its revision bbbb is read");
  }
  EXPECT_EQ(of(folder / "snapshots/aaaa").files.size(), 1u);
  EXPECT_PRED_FORMAT2(contains, refusal(), "datasets--a--b is a folder of the hub's cache, which holds revisions");
  folder_.write(cache + "refs/main", "cccc");
  EXPECT_PRED_FORMAT2(contains, refusal_of(folder), "the revisions aaaa, bbbb, and refs/main names cccc");
  std::filesystem::remove(folder / "refs/main");
  std::filesystem::remove_all(folder / "snapshots/aaaa");
  EXPECT_EQ(of(folder).files, std::vector<std::filesystem::path>{folder / "snapshots/bbbb/de/a.jsonl"});
}

TEST_F(HubFolder, PatternsMeanWhatDatasetsMeansByThemInItsOrder) {
  for (const char* name : {"top.jsonl", "a-b/one.jsonl", "a/two.jsonl", "a/b/three.jsonl", "a/__old/four.jsonl",
                           "a/\u00e9.jsonl", "a/UPPER.JSONL"}) {
    write(name);
  }
  const auto read_with = [&](const std::string& configs) {
    folder_.write("set/README.md", "\n---\r\nconfigs:  # one\r\n" + configs + "---\n");
    return files();
  };
  using Files = std::vector<std::string>;
  const Files everything{"a-b/one.jsonl", "a/b/three.jsonl", "a/two.jsonl", "a/\u00e9.jsonl", "top.jsonl"};
  EXPECT_EQ(read_with("- config_name: all\n  data_files: \"**\"\n"), everything);
  EXPECT_EQ(read_with("- config_name: all\n  data_files: \"**/*.jsonl\"\n"), everything) << "also files at the top";
  EXPECT_EQ(read_with("- config_name: all\n  data_files:\n  - top.jsonl  # first\n  - 'a/**/t*'\n"),
            (Files{"top.jsonl", "a/b/three.jsonl", "a/two.jsonl"}));
  EXPECT_EQ(read_with("- data_files: ['a/?.jsonl', \"a/__old/*\"]\n  config_name: all\n"),
            (Files{"a/\u00e9.jsonl", "a/__old/four.jsonl"}));
  EXPECT_EQ(read_with("- config_name: all\n  data_files: a/[!a-s]*.jsonl\n"), (Files{"a/two.jsonl", "a/\u00e9.jsonl"}));
  EXPECT_EQ(read_with("- config_name: x\n  data_dir: ./a/b/\n"), Files{"a/b/three.jsonl"});
  EXPECT_EQ(
      read_with("  - config_name: x\n    data_dir: a\n    data_files:\n    - path: b/*\n      split: validation\n    "
                "- split: train\n      path: \"*.jsonl\"\n"),
      (Files{"a/two.jsonl", "a/\u00e9.jsonl"}));
}

TEST_F(HubFolder, WhatItsReadmeLeavesOpenOrAsksForInVainIsRefused) {
  write("a.jsonl");
  write("b.jsonl");
  folder_.write("set/c.txt", "text");
  const std::string name = "- config_name: x\n  ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {name + "data_files: none.jsonl\n", "README.md names none.jsonl, and datasets reads no such file"},
      {name + "data_files: \"none*\"\n", "datasets finds no file for"},
      {name + "data_files: *.jsonl\n", "README.md:4: its configs say \"*.jsonl\", which is not followed here"},
      {name + "data_files: \"**.jsonl\"\n", "data_files: **.jsonl"},
      {name + "data_files: ../a.jsonl\n", "data_files: ../a.jsonl"},
      {name + "data_files: [a.jsonl, \"a*\"]\n", "two patterns find a.jsonl, which datasets reads twice"},
      {name + "data_files: \"*\"\n", "c.txt: it is among files of another kind; name the files with a glob"},
      {name + "data_files: \"*.jsonl\"\n  field: rows\n", "field: \"rows\""},
      {name + "default: true\n- config_name: default\n",
       "the configurations x, default, of which several are the default"},
      {name + "data_files:\n  - split: train\n    path: a.jsonl\n  - split: train\n    path: b.jsonl\n",
       "split: train (twice)"},
      {name + "data_files: a.jsonl\n  data_files: b.jsonl\n", "README.md:5: its configs say \"data_files: b.jsonl\""},
      {name + "data_files: |\n    a.jsonl\n", "README.md:4: its configs say \"|\""},
      {name + "data_files: a.jsonl\n b\n", "README.md:5: its configs say \"b\""},
      {"  {config_name: x}\n", "README.md:3: its configs say \"{config_name: x}\""},
  };
  for (const auto& [configs, words] : cases) {
    folder_.write("set/README.md", "---\nconfigs:\n" + configs + "---\n");
    EXPECT_PRED_FORMAT2(contains, refusal(), words);
  }
  std::string many;
  for (int i = 0; i < 300; ++i) many += "- config_name: c" + std::to_string(i) + "\n";
  folder_.write("set/README.md", "---\nconfigs:\n" + many + "---\n");
  EXPECT_PRED_FORMAT2(contains, refusal(), "c18, c19, … (300 in all), of which none is the default");
  folder_.write("set/README.md", "---\nlicense: mit\n---\n");
  EXPECT_EQ(files().size(), 2u) << "records are read, since more files hold them than text";
  std::filesystem::create_directory_symlink("/", folder_ / "set/.hidden");
  std::filesystem::create_directory(folder_ / "other");
  folder_.write("other/train.jsonl", "{\"text\": \"x\"}\n");
  std::filesystem::create_directory_symlink("../other", folder_ / "set/linked");
  EXPECT_PRED_FORMAT2(contains, refusal(), "linked is a link to a folder, which datasets does not follow");
}

TEST_F(HubFolder, DataThatAreNotReadAreRefusedByName) {
  folder_.write("set/dataset_infos.json", "{}");
  folder_.write("set/data/train-0.arrow", "ARROW1\0\0"s);
  EXPECT_PRED_FORMAT2(contains, refusal(), "train-0.arrow: this is an Arrow file");
  write("data/test-0.jsonl");
  EXPECT_PRED_FORMAT2(contains, refusal(), "train-0.arrow: this is an Arrow file");
  folder_.write("saved/set/state.json", "{}");
  folder_.write("saved/set/dataset_info.json", "{}");
  folder_.write("saved/set/data-00000-of-00001.arrow", "\xFF\xFF\xFF\xFF");
  const auto of = [](const std::filesystem::path& path) {
    return message_of(ExitCode::bad_data, [&] { find_text_files(path.string()); });
  };
  EXPECT_PRED_FORMAT2(contains, of(folder_ / "saved/set"), "save_to_disk, whose Arrow files are not read; convert it");
  EXPECT_PRED_FORMAT2(contains, of(folder_ / "saved"), "save_to_disk, whose Arrow files are not read; convert it");
}

TEST(OtherKinds, AFileIsRefusedByItsKindWhateverItsName) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.write(name, bytes);
    const std::string message = message_of(ExitCode::bad_data, [&] {
      TextFileSource source(path, "text", BadRecord::skip);
      for (Document document; source.next(document);) continue;
    });
    EXPECT_PRED_FORMAT2(contains, message, path + ": this is ");
    return message;
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
  EXPECT_PRED_FORMAT2(contains, refusal("a.jsonl", test::gzip("{}")), "give it a name that ends in .gz");
  EXPECT_PRED_FORMAT2(contains, refusal("b.txt", test::zstd("text")), "give it a name that ends in .zst");
  EXPECT_PRED_FORMAT2(contains, refusal("c.json.gz", pointer), "git lfs pull");
  EXPECT_PRED_FORMAT2(contains, refusal("d.jsonl", "<!doctype html><html></html>"), "download the file again");
  EXPECT_PRED_FORMAT2(contains, refusal("e.txt.gz", test::gzip("PK\x03\x04"s + std::string(40, 'x'))), "unzip");
  TextFileSource page(folder.write("f.txt", "<html>a page may be a document</html>"), "text", BadRecord::error);
  Document document;
  EXPECT_TRUE(page.next(document));
}

TEST(OtherKinds, APipeIsRefusedHoweverItIsNamed) {
  const TemporaryFolder folder;
  folder.write("c/a.jsonl", "{\"text\": \"one\"}\n");
  ASSERT_EQ(::mkfifo((folder / "c/b.jsonl").c_str(), 0600), 0);
  for (const char* path : {"c/b.jsonl", "c", "c/*.jsonl"}) {
    EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { find_text_files((folder / path).string()); }),
                        "text is read more than once");
  }
  EXPECT_PRED_FORMAT2(contains, message_of(ExitCode::bad_data, [&] { FileReader reader(folder / "c/b.jsonl"); }),
                      "this is not a file but a pipe, a device or a folder");
}

TEST(OtherKinds, IdsOfOtherTrainersAreKnown) {
  const TemporaryFolder folder;
  const std::string ids = folder.write("a.bin", std::string(40, '\3'));
  const auto refusal = [&] { return message_of(ExitCode::bad_data, [&] { open_dataset({.path = ids}); }); };
  EXPECT_PRED_FORMAT2(contains, refusal(), "nanoGPT's train.bin");
  folder.write("a.bin.idx", "MMIDIDX\0\0"s + std::string(400, '\0'));
  EXPECT_PRED_FORMAT2(contains, refusal(), "a.bin.idx: this is an index of Megatron-LM's .bin files");
  std::filesystem::rename(folder / "a.bin.idx", folder / "a.idx");
  EXPECT_PRED_FORMAT2(contains, refusal(), "a.bin: its index a.idx has version 0, and version 1 is read");
  ASSERT_EQ(::mkfifo((folder / "a.bin.idx").c_str(), 0600), 0);
  EXPECT_PRED_FORMAT2(contains, refusal(), "a.bin.idx: this is not a file but a pipe, a device or a folder");
  folder.write("a.bin", "\x88\xD8\x34\x01\1\0\0\0\1\0\0\0\0\0\0\0"s);
  std::filesystem::remove(folder / "a.bin.idx");
  std::filesystem::remove(folder / "a.idx");
  EXPECT_PRED_FORMAT2(contains, refusal(), "its header says 1 ids of 2 bytes, and the file has 16 bytes");
}

}  // namespace
}  // namespace titan
