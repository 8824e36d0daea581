#include "titan/cli/commands.h"
#include "titan/cli/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iostream>
#include <istream>
#include <ostream>
#include <sstream>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"
#include "titan/corpus/train_tokenizer.h"
#include "titan/corpus/vocabulary.h"
#include "titan/text/tokenizer_tools.h"

namespace titan {
namespace {

constexpr std::array<Rewording, 5> kTokenizerWords{{{"data.bad_record = \"skip\"", "--bad-record skip"},
                                                    {"data.text_field", "--text-field"},
                                                    {"model.tokenizer_path", "model"},
                                                    {", and mix them with data.mixture if you want both", ""},
                                                    {"needs dataset_path:", "needs --dataset-path:"}}};

/// The parsed command line; the CLI::App knows which subcommand was given.
struct TokenizerOptions {
  TokenizerTraining training;
  TokenizerEncoding encoding;
  std::string bad_record = "error";
  std::string model;
  std::string input = "-";
};

void declare_train(CLI::App& app, TokenizerOptions& options) {
  auto* command = app.add_subcommand("train", "Learn a byte-pair vocabulary and write a tiktoken model file");
  auto& training = options.training;
  command->add_option("--output", training.output, "File to write")->required();
  command->add_option("--hugging-face", training.hugging_face, "Folder to write the same as a tokenizer.json to");
  command->add_option("--vocab-size", training.vocabulary_size, "Ids in all, 256 special tokens included")->required();
  command->add_option("--dataset", training.dataset.dataset, "text, c4, c4_test or c4_validation")
      ->capture_default_str();
  command->add_option("--dataset-path", training.dataset.path, "A .txt or .jsonl file, a folder of them or a glob");
  command->add_option("--text-field", training.dataset.text_field, "Field of .jsonl records")->capture_default_str();
  command->add_option("--bad-record", options.bad_record, "Records that cannot be used: error or skip")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  command->add_option("--bytes", training.most_bytes, "Text to learn from, at most")
      ->check(at_least(1))
      ->default_str("all");
}

void declare_users(CLI::App& app, TokenizerOptions& options) {
  auto* encode = app.add_subcommand("encode", "Text to ids, on one line");
  auto* decode = app.add_subcommand("decode", "Ids to text");
  auto* info = app.add_subcommand("info", "What a tokenizer file holds");
  for (CLI::App* command : {encode, decode, info}) {
    command->add_option("model", options.model, "Tokenizer file or folder")->required();
  }
  for (CLI::App* command : {encode, decode}) {
    command->add_option("input", options.input, "File to read; - is standard input")->capture_default_str();
  }
  encode->add_flag("--bos", options.encoding.bos, "Begin with the begin-of-text id");
  encode->add_flag("--eos", options.encoding.eos, "End with the end-of-text id");
  encode
      ->add_option("--measure", options.encoding.measure, "Encode so many times and print the speed instead of the ids")
      ->check(at_least(1));
}

/// Calls `use` with standard input or the named file, of which no more is read than one text may have.
void with_input(const std::string& name, std::istream& in, const std::function<void(std::istream&)>& use) {
  if (name == "-") return use(in);
  std::error_code none;
  if (const auto bytes = std::filesystem::file_size(name, none); !none && bytes > kLongestText) refuse_long_text();
  std::istringstream file(read_text_file(name, ExitCode::bad_data, kLongestText, kKindsOfText));
  use(file);
}

}  // namespace

std::vector<std::string> tokenizer_command_words() { return {"train", "encode", "decode", "info"}; }

void run_tokenizer_command(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out) {
  TokenizerOptions options;
  CLI::App app("Make, use and inspect tokenizers", "titan_train tokenizer");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  titan_train tokenizer train --dataset-path corpus/ --vocab-size 8192 --output my.model\n"
      "  titan_train tokenizer encode my.model book.txt --bos");
  declare_train(app, options);
  declare_users(app, options);
  if (!parse_words(app, arguments, out)) return;
  options.training.dataset.bad_record = options.bad_record == "skip" ? BadRecord::skip : BadRecord::error;
  in_words_of_command(kTokenizerWords, [&] {
    if (app.got_subcommand("train")) return train_tokenizer(options.training, out);
    const auto tokenizer = open_vocabulary(options.model, std::cerr);
    if (app.got_subcommand("info")) describe_tokenizer(*tokenizer, out);
    auto encode = [&](std::istream& text) { encode_stream(*tokenizer, options.encoding, text, out); };
    auto decode = [&](std::istream& ids) { decode_stream(*tokenizer, ids, out); };
    if (app.got_subcommand("encode")) with_input(options.input, in, encode);
    if (app.got_subcommand("decode")) with_input(options.input, in, decode);
  });
}

}  // namespace titan
