#include "titan/cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <ostream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/cli/program.h"
#include "titan/corpus/inspect.h"
#include "titan/corpus/tokenize.h"
#include "titan/text/chat.h"

namespace titan {
namespace {

constexpr std::array<Rewording, 11> kDataWords{
    {{"data.bad_record = \"skip\"", "--bad-record skip"},
     {"data.text_field", "--text-field"},
     {"Give .bin files alone, for validation too, or name the tokenizer itself", "Name the tokenizer itself"},
     {"model.tokenizer_path", "--tokenizer"},
     {"Read it with training.dataset = \"text\"", "Leave --nanogpt out"},
     {"training.dataset = \"nanogpt\"", "--nanogpt"},
     {", and mix them with data.mixture if you want both", ""},
     {"needs dataset_path:", "needs --dataset-path:"},
     {"training.dataset = \"chat\"", "data peek and data stats read it with --chat-template"},
     {"data.ignore_fields", "--ignore-fields"},
     {"data.chat_template", "--chat-template"}}};

struct DataOptions {
  Tokenization tokenization;
  Inspection inspection;
  DatasetOptions dataset;
  std::string bad_record = "error";
  std::string ids_field;
  GivenIds ids;
  bool nanogpt = false;
};

void declare_corpus(CLI::App& command, DataOptions& options) {
  command
      .add_option("--dataset-path", options.dataset.path,
                  "A .txt, .jsonl, .parquet, .bin or .ds file, a folder or a glob")
      ->required();
  command.add_option("--text-field", options.dataset.text_field, "Field of .jsonl records, column of .parquet files")
      ->capture_default_str();
  command.add_option("--bad-record", options.bad_record, "Records that cannot be used: error or skip")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
}

void declare(CLI::App& app, DataOptions& options) {
  auto* tokenize = app.add_subcommand("tokenize", "Text to a .bin file of ids, on all cores; a killed run resumes");
  declare_corpus(*tokenize, options);
  auto* tokenizer = tokenize->add_option("--tokenizer", options.tokenization.tokenizer, "Tokenizer file or folder");
  auto* ids = tokenize->add_option("--ids", options.ids_field,
                                   "Field of records, or column, that holds a list of ids, made by another package");
  ids->excludes(tokenizer);
  auto* size =
      tokenize->add_option("--vocab-size", options.ids.vocabulary, "With --ids: number of the tokenizer's ids");
  ids->needs(size->needs(ids));
  tokenize->add_option("--bos", options.ids.bos, "With --ids: the id that begins a document")
      ->check(at_least(0))
      ->needs(ids);
  tokenize->add_option("--eos", options.ids.eos, "With --ids: the id that ends a document")
      ->check(at_least(0))
      ->needs(ids);
  tokenize->add_option("--made-by", options.ids.maker, "With --ids: a name of their tokenizer")->needs(ids);
  tokenize->add_option("--output", options.tokenization.output, "File to write, NAME.bin")->required();
  tokenize->add_option("--threads", options.tokenization.threads, "Threads that encode; 0: one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  tokenize->add_flag("--overwrite", options.tokenization.overwrite, "Replace an existing output");

  auto* info = app.add_subcommand("info", "Say what a corpus is, without reading all of it");
  auto* stats = app.add_subcommand("stats", "Count documents, bytes and tokens");
  auto* peek = app.add_subcommand("peek", "Show the first documents");
  std::vector<std::string> templates = chat_template_names();
  std::erase(templates, "custom");  // options of a config define it, which these commands do not read
  for (CLI::App* command : {info, stats, peek}) {
    declare_corpus(*command, options);
    auto* tokenizer = command->add_option("--tokenizer", options.inspection.tokenizer,
                                          "Tokenizer file or folder: count tokens as well");
    command
        ->add_option("--chat-template", options.inspection.chat_template,
                     "Read conversations, written with this template; auto: that of the tokenizer's folder")
        ->check(CLI::IsMember(templates))
        ->needs(tokenizer);
    command
        ->add_flag("--nanogpt", options.nanogpt,
                   "The .bin files are nanoGPT's: uint16 ids without a header, documents ended by the tokenizer")
        ->needs(tokenizer);
    command
        ->add_option("--ignore-fields", options.inspection.dataset.ignore_fields,
                     "Fields of conversations and of their messages that are read as if they were not there")
        ->delimiter(',');
  }
  peek->add_option("--documents", options.inspection.documents, "How many")->check(at_least(1))->capture_default_str();
}

void run_tokenize(DataOptions& options, std::ostream& out) {
  Tokenization& wanted = options.tokenization;
  if (!options.ids_field.empty()) {
    wanted.ids = options.ids;
    wanted.dataset.text_field = options.ids_field;
  } else if (wanted.tokenizer.empty()) {
    throw Error(ExitCode::bad_config,
                "no tokenizer is given: name one with --tokenizer. If the records hold ids that another package made, "
                "name their field with --ids instead (titan_train data tokenize --help)");
  }
  tokenize_corpus(wanted, out);
}

}  // namespace

std::vector<std::string> data_command_words() { return {"tokenize", "info", "stats", "peek"}; }

void run_data_command(const std::vector<std::string>& arguments, std::ostream& out) {
  DataOptions options;
  CLI::App app("Make a corpus ready, and look at one", "titan_train data");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  titan_train data peek --dataset-path corpus/ --tokenizer my.model\n"
      "  titan_train data tokenize --dataset-path corpus/ --tokenizer my.model --output corpus.bin");
  declare(app, options);
  if (!parse_words(app, arguments, out)) return;
  options.dataset.bad_record = options.bad_record == "skip" ? BadRecord::skip : BadRecord::error;
  options.dataset.ignore_fields = options.inspection.dataset.ignore_fields;
  options.tokenization.dataset = options.inspection.dataset = options.dataset;
  if (options.nanogpt) options.inspection.dataset.dataset = "nanogpt";
  in_words_of_command(kDataWords, [&] {
    if (app.got_subcommand("tokenize")) run_tokenize(options, out);
    if (app.got_subcommand("info")) describe_files(options.inspection, out);
    if (app.got_subcommand("stats")) describe_corpus(options.inspection, out);
    if (app.got_subcommand("peek")) show_documents(options.inspection, out);
  });
}

}  // namespace titan
