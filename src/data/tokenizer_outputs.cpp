#include "tokenizer_outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "corpus_output.h"
#include "titan/base/error.h"
#include "titan/data/hugging_face_writer.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_place(const fs::path& output, const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::storage,
              fmt::format("the tokenizer cannot be written: \"{}\" {}. {}.", output.string(), what, remedy));
}

/// Why no file can be made in `folder`, which is there; empty where one can.
std::string closed(const fs::path& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("lies in {}, which cannot be written to ({})", folder.string(), std::strerror(errno));
}

void check_file(const fs::path& output) {
  std::error_code ignored;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : ".";
  std::string what;
  if (!output.has_filename()) {
    what = "names no file";
  } else if (fs::is_directory(output, ignored)) {
    what = "is a folder";
  } else if (!fs::is_directory(folder, ignored)) {
    what = fmt::format("lies in {}, which is no folder", folder.string());
  } else if (!fs::is_other(fs::status(output, ignored))) {  // a device or a pipe takes what is written to it
    what = closed(folder);
  }
  if (!what.empty()) refuse_place(output, what, "Name a file in a folder that is there with --output");
}

/// The folder need not be there, nor those above it.
void check_folder(const fs::path& wanted) {
  const std::string remedy = "Name a folder that is there or can be made with --hugging-face";
  std::error_code ignored;
  fs::path there = fs::absolute(wanted).lexically_normal();
  while (there.has_relative_path() && !fs::exists(fs::symlink_status(there, ignored))) there = there.parent_path();
  if (!fs::is_directory(there, ignored)) {
    const bool itself = fs::equivalent(there, wanted, ignored);
    refuse_place(wanted, itself ? "is no folder" : fmt::format("lies in {}, which is no folder", there.string()),
                 remedy);
  }
  if (const std::string what = closed(there); !what.empty()) refuse_place(wanted, what, remedy);
}

void refuse_existing(const fs::path& output, std::string_view option) {
  std::error_code ignored;
  const bool there = fs::exists(fs::symlink_status(output, ignored));
  if (!there || fs::is_other(fs::status(output, ignored))) return;
  throw Error(ExitCode::bad_config, fmt::format("output {}: it is already there. Name another {}, or say --overwrite.",
                                                output.string(), option));
}

}  // namespace

void check_outputs(const TokenizerTraining& training) {
  check_file(training.output);
  if (!training.overwrite) refuse_existing(training.output, "--output");
  if (training.hugging_face.empty()) return;
  check_folder(training.hugging_face);
  for (const char* name : kHuggingFaceFiles) {
    const fs::path file = training.hugging_face / name;
    std::error_code ignored;
    if (fs::weakly_canonical(file, ignored) == fs::weakly_canonical(training.output, ignored)) {
      throw Error(ExitCode::bad_config, fmt::format("output {}: the folder of --hugging-face gets a file of this name. "
                                                    "Name another --output.",
                                                    training.output.string()));
    }
    if (!training.overwrite) refuse_existing(file, "--hugging-face");
  }
}

void check_outputs_against_corpus(const TokenizerTraining& training) {
  if (training.dataset.path.empty() || makes_documents(training.dataset)) return;
  std::vector<NamedOutput> outputs{{training.output, "--output"}};
  for (const char* name : kHuggingFaceFiles) {
    if (!training.hugging_face.empty()) outputs.push_back({training.hugging_face / name, "--hugging-face"});
  }
  refuse_outputs_in_corpus(training.dataset.path, outputs);
}

}  // namespace titan
