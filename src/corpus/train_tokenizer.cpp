#include "titan/corpus/train_tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "outputs.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/text/tokenizer_trainer.h"

namespace titan {
namespace {

void refuse_outputs_in_corpus(const TokenizerTraining& training) {
  if (training.dataset.path.empty()) return;
  std::vector<NamedOutput> outputs{{training.output, "--output"}};
  for (const char* name : kHuggingFaceFiles) {
    if (!training.hugging_face.empty()) outputs.push_back({training.hugging_face / name, "--hugging-face"});
  }
  refuse_outputs_in_corpus(training.dataset.path, outputs);
}

/// An output that cannot be written is refused before hours of reading.
void check_output(const std::filesystem::path& output) {
  std::error_code ignored;
  const char* what = !output.has_filename()                           ? "names no file"
                     : std::filesystem::is_directory(output, ignored) ? "is a folder"
                                                                      : nullptr;
  if (!what) return;
  throw Error(ExitCode::storage, fmt::format("the tokenizer cannot be written: \"{}\" {}. Name a file with --output.",
                                             output.string(), what));
}

}  // namespace

void train_tokenizer(const TokenizerTraining& training, std::ostream& out) {
  check_output(training.output);
  TokenizerTrainer trainer(training.vocabulary_size);
  const auto source = open_dataset(training.dataset);
  refuse_outputs_in_corpus(training);
  // Before the corpus is read, which may take hours.
  if (training.output.has_parent_path()) make_folders(training.output.parent_path());
  if (!training.hugging_face.empty()) {
    with_remedy("name another folder with --hugging-face", [&] { make_folders(training.hugging_face); });
  }
  const int64_t most = training.most_bytes.value_or(INT64_MAX);
  Document document;
  bool more = true;
  while (trainer.text_bytes() < most && (more = source->next(document))) {
    if (document.tokens) {
      throw Error(ExitCode::bad_data,
                  fmt::format("corpus {} holds ids, and a vocabulary is learned from text. Name the "
                              "text that they were made from.",
                              source->description()));
    }
    trainer.add(document.text);
  }
  const int64_t learned = trainer.write(training.output, training.hugging_face);
  out << fmt::format("{}: {} tokens learned from {} of {} ({} different pieces), and 256 special tokens: {} in all\n",
                     training.output.string(), with_thousands(learned),
                     human_bytes(static_cast<double>(trainer.text_bytes())), source->description(),
                     with_thousands(trainer.distinct_pieces()), with_thousands(training.vocabulary_size));
  if (more) out << "no more text than that was read (--bytes)\n";
  for (const std::string& notice : source->take_notices()) out << notice << '\n';
  if (int64_t bad = source->counters().bad_records; bad > 0) out << fmt::format("{} bad records were left out\n", bad);
}

}  // namespace titan
