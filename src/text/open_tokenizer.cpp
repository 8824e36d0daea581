#include "titan/text/tokenizer.h"

#include <fmt/format.h>

#include <fstream>

#include "hugging_face_tokenizer.h"
#include "sentencepiece_model.h"
#include "tiktoken.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

enum class Kind { tiktoken, sentencepiece, hugging_face, empty, unknown };

/// Detects the kind by the first bytes: names are ambiguous, every kind uses tokenizer.model or tokenizer.json.
Kind kind_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  if (head.empty()) return Kind::empty;
  if (looks_like_tiktoken(head)) return Kind::tiktoken;
  size_t first = head.find_first_not_of(" \t\r\n");
  if (first != head.npos && head[first] == '{') return Kind::hugging_face;
  if (looks_like_sentencepiece(head)) return Kind::sentencepiece;
  // If the first line of a model file is damaged, the tiktoken reader gives the best error: by line.
  return path.extension() == ".model" || path.extension() == ".tiktoken" ? Kind::tiktoken : Kind::unknown;
}

[[noreturn]] void fail(const fs::path& path, std::string_view what) {
  throw Error(ExitCode::bad_data, fmt::format("tokenizer {}: {}", path.string(), what));
}

constexpr std::string_view kTokenizerForms =
    "Give a tiktoken model file (Llama 3's tokenizer.model), a SentencePiece model (Llama 2's), a Hugging Face folder "
    "(with a tokenizer.json) or, for ids alone, their .bin file with its .idx beside it, or make one with: titan_train "
    "tokenizer train";

/// A folder's tokenizer file, the most informative one first.
fs::path file_in_folder(const fs::path& folder) {
  for (const char* place : {"tokenizer.json", "tokenizer.model", "original/tokenizer.model", "vocab.json",
                            "tiktoken.model", "qwen.tiktoken", "tekken.json"}) {
    if (fs::exists(folder / place)) return folder / place;
  }
  if (fs::exists(folder / "vocab.txt")) {
    fail(folder, fmt::format("a tokenizer that is only a vocab.txt {}.", kTokenizeOffline));
  }
  fail(folder,
       fmt::format("there is no tokenizer.json, tokenizer.model or vocab.json in this folder. {}.", kTokenizerForms));
}

std::shared_ptr<const Tokenizer> open_sentencepiece(const fs::path& file) {
  SentencePieceModel model = read_sentencepiece_model(file);
  if (std::optional<HuggingFaceParts> parts = read_with_settings(file, model)) {
    return std::make_shared<HuggingFaceTokenizer>(std::move(*parts));
  }
  try {
    return std::make_shared<SentencePieceTokenizer>(std::move(model));
  } catch (const Error& error) {
    fail(file, error.what());
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(const fs::path& path) {
  std::error_code problem;
  auto status = fs::status(path, problem);
  if (!fs::exists(status)) {
    fail(path, fmt::format("cannot be read: {}. Set model.tokenizer_path to a tokenizer file that is there.",
                           std::make_error_code(std::errc::no_such_file_or_directory).message()));
  }
  fs::path file = fs::is_directory(status) ? file_in_folder(path) : path;
  if (!fs::is_regular_file(file)) fail(file, "this is not a file but a folder, a pipe or a device. Name a file.");
  refuse_kind(file_kind_at(file), file, ExitCode::bad_data);
  switch (kind_of_file(file)) {
    case Kind::hugging_face:
      return std::make_shared<HuggingFaceTokenizer>(read_hugging_face_tokenizer(file));
    case Kind::sentencepiece:
      return open_sentencepiece(file);
    case Kind::unknown:
      fail(file, fmt::format("this is not a tokenizer file that is known here. {}.", kTokenizerForms));
    case Kind::empty:  // the reader says whether the file is empty or cannot be opened
    case Kind::tiktoken:
      break;
  }
  std::vector<std::string> tokens = read_tiktoken_file(file);
  if (std::optional<HuggingFaceParts> parts = read_with_settings(file, tokens)) {
    return std::make_shared<HuggingFaceTokenizer>(std::move(*parts));
  }
  std::vector<std::string> notices = check_is_llama3(file, tokens);
  return std::make_shared<TiktokenTokenizer>(std::move(tokens), std::move(notices));
}

}  // namespace titan
