#include "titan/cli/facts.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "config/support.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

class FoundInputs : public ScratchTest {};

TEST_F(FoundInputs, a_glob_is_there_when_it_matches) {
  write("a.txt", "x");
  auto about = [&](const std::string& pattern) {
    const LoadedConfig loaded =
        load("[training]\ndataset = \"text\"\ndataset_path = \"" + (folder_ / pattern).string() +
             "\"\n[model]\ntokenizer_path = \"" + folder_.string() + "\"");
    return format_problems(check_inputs(loaded, find_inputs(loaded)));
  };
  EXPECT_EQ(about("*.txt"), "");
  EXPECT_NE(about("*.jsonl"), "");
}

TEST_F(FoundInputs, validation_reads_the_training_corpus_if_the_file_system_says_so) {
  for (const char* name : {"a.bin", "a.idx", "other.bin", "other.idx"}) write(name, "x");
  std::filesystem::create_symlink(folder_ / "a.bin", folder_ / "link.bin");
  std::filesystem::create_symlink(folder_ / "a.idx", folder_ / "link.idx");
  const auto is_one = [&](const std::string& validation, const std::string& enable = "true",
                          const std::string& order = "megatron") {
    const std::string folder = folder_.string() + "/";
    return machine_facts(load("[training]\ndataset = \"text\"\ndataset_path = \"" + folder +
                              "a\"\n[validation]\nenable = " + enable + "\ndataset = \"text\"\ndataset_path = \"" +
                              folder + validation + "\"\n[data]\norder = \"" + order + "\"\n"))
        .validates_on_training_corpus;
  };
  for (const char* same : {"a", "a.bin", "./a.bin", "link", "link.bin", "[a].bin"}) EXPECT_TRUE(is_one(same)) << same;
  for (const char* different : {"other", "other.bin", "missing"}) EXPECT_FALSE(is_one(different)) << different;
  EXPECT_FALSE(is_one("a", "false")) << "no validation";
  EXPECT_FALSE(is_one("a", "true", "documents")) << "nothing asks";
}

/// An installation: configs/sub/job.toml and tokenizers/t.model, which the config names by its path from the top.
class Installation : public ScratchTest {
 protected:
  void SetUp() override {
    write("root/tokenizers/t.model", "x");
    write_config("./tokenizers/t.model");
  }
  void write_config(const std::string& tokenizer) const {
    write("root/configs/sub/job.toml", "[model]\ntokenizer_path = \"" + tokenizer +
                                           "\"\n[training]\ndataset = \"text\"\ndataset_path = \"" + config_.string() +
                                           "\"\n");
  }

  std::filesystem::path root_ = folder_ / "root";
  std::filesystem::path config_ = root_ / "configs/sub/job.toml";
};

TEST_F(Installation, a_path_in_a_config_is_found_above_the_config_and_said_to_be) {
  LoadedConfig loaded = load_words({config_});
  EXPECT_EQ(format_problems(check_inputs(loaded, find_inputs(loaded))), "");
  const std::string place = root_ / "tokenizers/t.model";
  EXPECT_EQ(join(use_found_inputs(loaded, find_inputs(loaded)), "\n"),
            "model.tokenizer_path = \"./tokenizers/t.model\" is not in the current folder; using " + place);
  EXPECT_EQ(*loaded.config.model.tokenizer_path, place);
}

TEST_F(Installation, the_current_folder_comes_first_and_needs_no_line) {
  // Tests run in the source folder, which has this file.
  write_config("README.md");
  write("root/configs/sub/README.md", "x");
  LoadedConfig loaded = load_words({config_});
  ASSERT_TRUE(std::filesystem::exists("README.md"));
  EXPECT_TRUE(use_found_inputs(loaded, find_inputs(loaded)).empty());
  EXPECT_EQ(*loaded.config.model.tokenizer_path, "README.md");
}

TEST_F(Installation, a_path_of_the_command_line_is_looked_for_in_the_current_folder_only) {
  LoadedConfig loaded = load_words({config_, "--model.tokenizer_path=tokenizers/t.model"});
  EXPECT_EQ(check_inputs(loaded, find_inputs(loaded)).size(), 1u);
  EXPECT_TRUE(use_found_inputs(loaded, find_inputs(loaded)).empty());
}

class SecretOfAProcess : public ScratchTest {
 protected:
  ~SecretOfAProcess() override {
    ::unsetenv("TITAN_SECRET_FILE");
    ::unsetenv("TITAN_SECRET");
  }
  static std::optional<std::string> secret() { return process_context().variable("TITAN_SECRET"); }
};

TEST_F(SecretOfAProcess, is_a_variable_or_else_the_line_of_a_private_file) {
  ::unsetenv("TITAN_SECRET");
  ::unsetenv("TITAN_SECRET_FILE");
  EXPECT_EQ(secret(), std::nullopt);
  const std::string file = write("secret", "of the file\n").string();
  ::setenv("TITAN_SECRET_FILE", file.c_str(), 1);
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  EXPECT_EQ(secret(), "of the file");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::others_read);
  EXPECT_THROW(secret(), Error);
  ::setenv("TITAN_SECRET", "of the variable", 1);
  EXPECT_EQ(secret(), "of the variable");
}

TEST(LauncherOfAProcess, is_one_of_its_ancestors) { EXPECT_GT(process_context().launcher_process(), 0); }

}  // namespace
}  // namespace titan
