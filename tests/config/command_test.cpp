#include "titan/config/config_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/config/completion.h"
#include "titan/config/dump.h"
#include "titan/config/help.h"

namespace titan {
namespace {

struct Said {
  int code;
  std::string output;
  std::string errors;
};

Said run(const std::vector<std::string>& words) {
  std::ostringstream output;
  std::ostringstream errors;
  int code = config_command(Schema(), words, {}, output, errors);
  return {code, output.str(), errors.str()};
}

class ConfigCommand : public ScratchTest {};

TEST_F(ConfigCommand, show_of_former_spellings_prints_a_file_in_todays) {
  std::filesystem::path file = write("old.toml",
                                     "[model]\nnorm_type = \"rmsnorm\"\n[training]\nbatch_size = 3\n"
                                     "enable_loss_parallel = false\n[experimental]\npipeline_parallel_degree = 1\n");
  Said said = run({"show", file});
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(load(said.output).renamed, std::vector<std::string>()) << said.output;
  LoadedConfig old = load_words({file});
  EXPECT_EQ(old.renamed.size(), 3u) << said.errors;
  old.config.job.config_file = "job.toml";
  EXPECT_EQ(dump_json(Schema(), load(said.output).config), dump_json(Schema(), old.config));
}

TEST_F(ConfigCommand, what_a_file_is_called_or_holds_moves_no_cursor) {
  std::filesystem::path file = write("a\x1b[2J\nb.toml", "[training]\n\"st\\u001bps\" = 3\n[\"o\\u0007dd\"]\n");
  Said said = run({"show", file, "--x\x1b[2J\n=4"});
  EXPECT_EQ(said.code, 64);
  EXPECT_EQ(split(said.errors, '\n').size(), 5u) << said.errors;
  EXPECT_TRUE(contains(said.errors, "a\\x1b[2J\\nb.toml:2:1: unknown option training.st\\x1bps")) << said.errors;
  for (const char byte : {'\x1b', '\a'}) EXPECT_FALSE(contains(said.errors, std::string(1, byte))) << said.errors;
  file = write("c\nd = 1.toml", "[training]\nsteps = 3\n");
  EXPECT_TRUE(contains(run({"show", file}).output, "c\\nd = 1.toml:2:9\n"));
}

TEST_F(ConfigCommand, show_can_print_json) {
  Said said = run({"show", "--json", "--quantize.linear.float8.filter_fqns", "wo,w2"});
  auto json = nlohmann::json::parse(said.output);
  EXPECT_EQ(json["training"]["seq_len"], 2048);
  EXPECT_EQ(json["quantize"]["linear"]["float8"]["filter_fqns"][1], "w2");
  EXPECT_TRUE(json["debug"]["seed"].is_null());
}

TEST(Help, lists_every_option_under_its_section_within_120_columns) {
  Schema schema;
  std::string text = help_text(schema);
  for (const Option& option : schema.options()) EXPECT_TRUE(contains(text, "--" + option.key)) << option.key;
  for (const std::string& line : split(text, '\n'))
    EXPECT_LE(line.size(), 120u + 4) << line;  // bytes; "…" and "≥" take three
  EXPECT_FALSE(contains(help_text(schema, "optimizer"), "--training."));
}

TEST(Docs, the_page_on_configuration_holds_the_tables_of_the_schema) {
  std::string page = read_file(source_folder() / "docs/configuration.md");
  EXPECT_TRUE(contains(page, docs_text(Schema()))) << "write the output of `titan_train config docs` into the page";
}

CompletionWords program_words() {
  return {{{"train", {}, true},
           {"config", {"show", "diff"}, true},
           {"tokenizer", {"train", "info"}, false},
           {"generate", {}, true}},
          {{"tokenizer/train", {"--output", "--overwrite"}}, {"generate", {"--prompt", "--json"}}},
          {{"model.flavor", {"debugmodel", "8B"}}}};
}

/// What the shell's completion function offers for the last of `words`, sorted; nothing when the shell is not there.
class Completion : public ScratchTest {
 protected:
  void SetUp() override {
    for (const char* name : {"here/job.toml", "here/job.txt", "here/jobs/1.toml"}) write(name, "");
  }

  std::string run(const std::string& shell, const std::string& program) {
    const std::filesystem::path script = write("titan." + shell, completion_script(Schema(), shell, program_words()));
    const std::filesystem::path out = folder_ / ("offered." + shell + ".out");
    const std::filesystem::path file = write(
        "program." + shell, "cd '" + (folder_ / "here").string() + "'\nsource '" + script.string() + "'\n" + program);
    const std::string command =
        (shell == "bash" ? "bash --norc '" : "zsh -f '") + file.string() + "' > '" + out.string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << program;
    std::vector<std::string> offered = split(trim(read_file(out)), '\n');
    std::sort(offered.begin(), offered.end());
    return join(offered, " ");
  }
  std::string bash(const std::string& words) {
    return run("bash", "COMP_WORDS=(titan_train " + words +
                           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _titan_train; printf '%s\n' \"${COMPREPLY[@]}\"");
  }
  /// With stand-ins for what zsh itself has only while somebody types: all candidates, not yet filtered by the word.
  std::string zsh(const std::string& words) {
    return run("zsh",
               "compadd() { shift; print -l -- \"$@\"; }\n_files() { print -- \"files $*\"; }\ncompset() { :; }\n"
               "words=(titan_train " +
                   words + "); CURRENT=${#words}; _titan_train");
  }
};

TEST_F(Completion, bash_completes_options_values_and_subcommands) {
  EXPECT_EQ(bash("--training.seq"), "--training.seq_len");
  EXPECT_EQ(bash("--lr_scheduler.decay_type co"), "cosine");
  EXPECT_EQ(bash("--lr_scheduler.decay_type = s"), "sqrt");
  EXPECT_EQ(bash("tok"), "tokenizer");
  EXPECT_EQ(bash("--compile.no"), "--compile.no-cuda_graphs --compile.no-enable");
}

TEST_F(Completion, bash_completes_the_word_after_a_subcommand) {
  EXPECT_EQ(bash("config s"), "show");
  EXPECT_EQ(bash("tokenizer t"), "train");
  EXPECT_EQ(bash("config show --training.seq"), "--training.seq_len");
  EXPECT_EQ(bash("tokenizer info --training.seq"), "");
}

TEST_F(Completion, bash_completes_options_of_a_command) {
  EXPECT_EQ(bash("generate --prom"), "--prompt");
  EXPECT_EQ(bash("generate jobs --json --prom"), "--prompt");
  EXPECT_EQ(bash("generate --training.seq"), "--training.seq_len");
  EXPECT_EQ(bash("generate j"), "job.toml jobs");
  EXPECT_EQ(bash("tokenizer train --o"), "--output --overwrite");
  EXPECT_EQ(bash("tokenizer info --o"), "");
}

TEST_F(Completion, bash_knows_flavors_and_gives_a_flag_a_value_only_behind_its_equals_sign) {
  EXPECT_EQ(bash("--model.flavor d"), "debugmodel");
  EXPECT_EQ(bash("--compile.enable ="), "false true");
  EXPECT_EQ(bash("--compile.enable = t"), "true");
  EXPECT_EQ(bash("--compile.enable j"), "job.toml jobs");
}

TEST_F(Completion, bash_offers_toml_files_and_folders_as_config_and_any_file_as_a_value) {
  EXPECT_EQ(bash("job"), "job.toml jobs");
  EXPECT_EQ(bash("config show job"), "job.toml jobs");
  EXPECT_EQ(bash("--job.config_file job"), "job.toml jobs");
  EXPECT_EQ(bash("--model.tokenizer_path job"), "job.toml job.txt jobs");
  EXPECT_EQ(bash("tokenizer info job"), "job.toml job.txt jobs");
}

TEST_F(Completion, zsh_offers_the_same) {
  if (std::system("command -v zsh > /dev/null 2>&1") != 0) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_EQ(zsh("config s"), "diff show");
  EXPECT_EQ(zsh("tokenizer t"), "info train");
  EXPECT_EQ(zsh("tokenizer info j"), "files");
  EXPECT_EQ(zsh("--model.flavor d"), "8B debugmodel");
  EXPECT_EQ(zsh("--lr_scheduler.decay_type=s"), "cosine linear sqrt");
  EXPECT_EQ(zsh("--compile.enable=t"), "false true");
  EXPECT_EQ(zsh("--compile.enable j"), "files -g *.toml");
  EXPECT_EQ(zsh("--model.tokenizer_path j"), "files");
  EXPECT_EQ(zsh("jo"), "config files -g *.toml generate tokenizer train");
  EXPECT_EQ(zsh("tokenizer train --o"), "--output --overwrite");
  EXPECT_TRUE(contains(zsh("generate --p"), "--training.seq_len") && contains(zsh("generate --p"), "--prompt"));
  EXPECT_TRUE(contains(zsh("--tr"), "--training.seq_len"));
}

}  // namespace
}  // namespace titan
