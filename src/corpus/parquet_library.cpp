// Opens libtitan_parquet.so, and looks at what a file holds before Arrow does.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/corpus/parquet_file.h"

namespace titan {
namespace {

/// A Parquet file ends with the length of its footer and these letters, and begins with the letters.
constexpr std::string_view kMark = "PAR1", kEncryptedMark = "PARE";
constexpr int64_t kEndBytes = 8;

OpenParquetFile open_parquet_library() {
  const std::filesystem::path library = parquet_library_path();
  const char* const remedy =
      "scripts/setup.sh --parquet fetches Arrow (55 MB) and builds it; or give the corpus as .jsonl files";
  if (!std::filesystem::exists(library)) {
    throw Error(ExitCode::not_started,
                fmt::format("Parquet files are read by {}, which is not built: {}", library.string(), remedy));
  }
  // Local, because Arrow brings libraries along that LibTorch has in other versions.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const open = handle ? ::dlsym(handle, "titan_open_parquet") : nullptr;
  if (!open) {
    throw Error(ExitCode::not_started,
                fmt::format("Parquet files cannot be read, because libtitan_parquet.so cannot be loaded ({}): {}",
                            ::dlerror(), remedy));
  }
  return reinterpret_cast<OpenParquetFile>(open);
}

}  // namespace

void check_parquet_ends(const std::filesystem::path& path) {
  FileReader file(path);
  std::array<char, kKindBytes> head;
  const std::string_view begin(head.data(), file.read(head.data(), head.size()));
  if (begin.empty()) fail_reading(path, "the file is empty. Get the whole file again, or remove it.");
  const bool is_encrypted = begin.starts_with(kEncryptedMark);
  if (!begin.starts_with(kMark) && !is_encrypted) {
    refuse_kind(kind_of(begin), path, ExitCode::bad_data);
    fail_reading(path,
                 "this is no Parquet file, although its name says so: it does not begin with PAR1. "
                 "If it is text, give it the name of a text file.");
  }
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  std::array<char, kEndBytes> tail{};
  bool is_whole = size >= kEndBytes + std::ssize(kMark);
  if (is_whole) {
    file.skip(size - kEndBytes - file.offset());
    is_whole = file.read(tail.data(), tail.size()) == tail.size();
  }
  const std::string_view end(tail.data() + kEndBytes - kMark.size(), kMark.size());
  if (!is_whole || (end != kMark && end != kEncryptedMark)) {
    fail_reading(path, fmt::format("the file is cut off: a Parquet file ends with PAR1, and this one after {} bytes "
                                   "without. Get the whole file again, or remove it.",
                                   with_thousands(size)));
  }
  if (is_encrypted || end == kEncryptedMark) {
    fail_reading(path, "this Parquet file is encrypted. Write its rows to a file without encryption.");
  }
  uint32_t footer = 0;
  std::memcpy(&footer, tail.data(), sizeof footer);
  if (footer > size - kEndBytes - std::ssize(kMark)) {
    fail_reading(path, fmt::format("its last bytes are damaged: they say that the footer has {} bytes, more than the "
                                   "file. Get the file again, or remove it.",
                                   with_thousands(int64_t{footer})));
  }
}

std::filesystem::path parquet_library_path() { return beside_program("libtitan_parquet.so"); }

std::unique_ptr<ParquetFile> open_parquet_file(const std::filesystem::path& path) {
  check_parquet_ends(path);
  // Opened once in a process. If that throws, the next call tries again.
  static const OpenParquetFile open = open_parquet_library();
  try {
    return std::unique_ptr<ParquetFile>(open(path.string()));
  } catch (const std::runtime_error& problem) {
    fail_reading(path, problem.what());
  }
}

}  // namespace titan
