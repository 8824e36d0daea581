#include "titan/base/file_kind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes;
  FileKind kind;
};

/// The first match decides, so the longer one comes first where one begins another.
constexpr std::array kMagics{
    Magic{"version https://git-lfs.github.com/spec/"sv, FileKind::lfs_pointer},
    Magic{"version https://hawser.github.com/spec/"sv, FileKind::lfs_pointer},
    Magic{"# xet version"sv, FileKind::lfs_pointer},
    Magic{"/annex/objects/"sv, FileKind::annex_pointer},
    Magic{"\x1F\x8B"sv, FileKind::gzip},
    Magic{"\x28\xB5\x2F\xFD"sv, FileKind::zstd},
    Magic{"\xFD"
          "7zXZ\0"sv,
          FileKind::xz},
    Magic{"BZh"sv, FileKind::bzip2},
    Magic{"\x04\x22\x4D\x18"sv, FileKind::lz4},
    Magic{"PK\x03\x04"sv, FileKind::zip},
    Magic{"PK\x05\x06"sv, FileKind::zip},
    Magic{"\x93NUMPY"sv, FileKind::numpy},
    Magic{"PK\x07\x08"sv, FileKind::zip},
    Magic{"7z\xBC\xAF\x27\x1C"sv, FileKind::seven_zip},
    Magic{"Rar!\x1A\x07"sv, FileKind::rar},
    Magic{"LZIP\x01"sv, FileKind::lzip},
    Magic{"\xFF\x06\0\0sNaPpY"sv, FileKind::snappy},
    Magic{"PAR1"sv, FileKind::parquet},
    Magic{"PARE"sv, FileKind::parquet},
    Magic{"ARROW1"sv, FileKind::arrow},
    Magic{"FEA1"sv, FileKind::arrow},
    Magic{"ORC\x08"sv, FileKind::orc},
    Magic{"ORC\x0A"sv, FileKind::orc},
    Magic{"Obj\x01"sv, FileKind::avro},
    Magic{"GGUF"sv, FileKind::gguf},
    Magic{"lmgg"sv, FileKind::gguf},
    Magic{"tjgg"sv, FileKind::gguf},
    Magic{"fmgg"sv, FileKind::gguf},
    Magic{"\x89HDF\r\n\x1A\n"sv, FileKind::hdf5},
    Magic{"SQLite format 3\0"sv, FileKind::sqlite},
    Magic{"MMIDIDX\0\0"sv, FileKind::megatron_index},
    Magic{"TNTIDX\0\0"sv, FileKind::megatron_index},
    Magic{"%PDF-"sv, FileKind::pdf},
    Magic{"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, FileKind::office},
    Magic{"\x89PNG\r\n\x1A\n"sv, FileKind::image},
    Magic{"\xFF\xD8\xFF"sv, FileKind::image},
    Magic{"GIF89a"sv, FileKind::image},
    Magic{"\x7F"
          "ELF"sv,
          FileKind::program},
};

/// What tells a binary file from text that begins with the same letters.
bool has_control_character(std::string_view head) {
  const std::string_view begin = head.substr(0, 64);
  return std::any_of(begin.begin(), begin.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
  });
}

bool has_zip_entry(std::string_view head, std::string_view ending) {
  const size_t name = 30;  // the local header of a zip entry has a fixed size
  if (head.size() < name) return false;
  const size_t length = static_cast<unsigned char>(head[26]) + 256 * static_cast<unsigned char>(head[27]);
  return head.substr(name, length).ends_with(ending);
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

/// An Arrow stream (what `datasets` saves): a continuation mark, the length of the schema, and a table of flatbuffers.
bool is_arrow_stream(std::string_view head) {
  if (head.size() < 16 || little_endian(head) != 0xFFFFFFFF) return false;
  const uint32_t length = little_endian(head.substr(4)), table = little_endian(head.substr(8));
  return length > 0 && length % 8 == 0 && table < length && table % 4 == 0;
}

/// Parallel packers begin with a frame that readers skip.
bool is_skippable_zstd(std::string_view head) {
  return head.size() >= 8 && (little_endian(head) & 0xFFFFFFF0) == 0x184D2A50;
}

/// Packed with xz's former format: properties, the size of the dictionary (a power of two, or half more), and of the
/// data, which may be unknown.
bool is_lzma(std::string_view head) {
  if (head.size() < 14 || head[0] != '\x5D') return false;
  const uint32_t dictionary = little_endian(head.substr(1)), size = little_endian(head.substr(5)),
                 high = little_endian(head.substr(9));
  const uint32_t lowest = dictionary & (~dictionary + 1);
  const bool fits = dictionary >= 4096 && (dictionary == lowest || dictionary == 3 * lowest);
  return fits && ((size == 0xFFFFFFFF && high == 0xFFFFFFFF) || high < 256) && head[13] == '\0';
}

/// Protocols 0 and 1 begin with text: a container that is stored at once, or a class of a known module.
bool is_old_pickle(std::string_view head) {
  for (const std::string_view begin : {"}q\0"sv, "]q\0"sv, "(dq\0"sv, "(lq\0"sv}) {
    if (head.starts_with(begin)) return true;
  }
  for (const std::string_view begin : {"(dp"sv, "(lp"sv}) {
    if (!head.starts_with(begin)) continue;
    const size_t end = head.find_first_not_of("0123456789", begin.size());
    if (end != head.npos && end > begin.size() && head[end] == '\n') return true;
  }
  for (const std::string_view module : {"copy_reg\n"sv, "copyreg\n"sv, "__builtin__\n"sv, "numpy."sv, "torch."sv,
                                        "collections\n"sv, "pandas."sv, "scipy."sv, "datetime\n"sv}) {
    if (head.starts_with('c') && head.substr(1).starts_with(module)) return head.find('\n') < 80;
  }
  return false;
}

bool is_pickle(std::string_view head) {
  // Two bytes of protocol alone would match other binary files, so the first opcode must be one that begins a value.
  constexpr std::string_view kNext = "}](c){X\x8A\x95\x8C\x8EKGN";
  if (head.size() > 3 && head[0] != '\x80') return is_old_pickle(head);
  return head.size() > 3 && head[1] >= 2 && head[1] <= 5 && kNext.find(head[2]) != kNext.npos;
}

bool is_safetensors(std::string_view head) {
  return head.size() > 9 && little_endian(head.substr(4)) == 0 && little_endian(head) >= 2 && head[8] == '{' &&
         (head[9] == '"' || head[9] == '}' || head[9] == ' ');
}

/// What a server answers in place of a file: a page, S3's error in XML, or the hub's few words.
FileKind kind_of_text(std::string_view head) {
  std::string_view text = head;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const auto skip_space = [&text] { text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n"))); };
  skip_space();
  while (text.starts_with("<!--")) {
    text.remove_prefix(std::min(text.size(), text.find("-->")));
    text.remove_prefix(std::min<size_t>(text.size(), 3));
    skip_space();
  }
  const std::string lower = to_lower(text.substr(0, 256));
  for (const char* tag : {"<!doctype html", "<html", "<head>", "<body"}) {
    if (lower.starts_with(tag)) return FileKind::html;
  }
  if (lower.starts_with("<?xml") && lower.find("<error>") != lower.npos) return FileKind::failed_download;
  for (const char* answer : {"Entry not found", "Repository not found", "Invalid username or password", "Access denied",
                             "404: Not Found", "Access to model"}) {
    if (head.size() < 256 && text.starts_with(answer)) return FileKind::failed_download;
  }
  const bool is_tekken = text.starts_with('{') && text.find("\"default_vocab_size\"") != text.npos &&
                         text.find("\"default_num_special_tokens\"") != text.npos;
  return is_tekken ? FileKind::tekken : FileKind::other;
}

/// What the file is, and what to do.
struct KindWords {
  FileKind kind = FileKind::other;
  std::string_view what, remedy;
};

/// One row for each kind but `other`, in the order of FileKind.
constexpr std::array kWords = std::to_array<KindWords>({
    {FileKind::lfs_pointer, "a Git LFS pointer, not the file itself",
     "fetch the file with git lfs pull, or download it"},
    {FileKind::annex_pointer, "a pointer of git-annex, not the file itself", "fetch the file with git annex get"},
    {FileKind::gzip, "gzip data", "unpack it with gunzip, or, if it is a corpus, give it a name that ends in .gz"},
    {FileKind::zstd, "zstd data", "unpack it with zstd -d, or, if it is a corpus, give it a name that ends in .zst"},
    {FileKind::xz, "xz data", "unpack it with xz -d"},
    {FileKind::bzip2, "bzip2 data", "unpack it with bunzip2"},
    {FileKind::lz4, "lz4 data", "unpack it with lz4 -d"},
    {FileKind::zip, "a zip archive", "unpack it with unzip"},
    {FileKind::torch_zip, "a file of torch.save (a zip archive with a pickle)",
     "give the file that is meant, or write what it holds in that form with Python"},
    {FileKind::numpy, "a NumPy array", "write its values as JSON lines or as safetensors with Python"},
    {FileKind::seven_zip, "a 7z archive", "unpack it with 7z x"},
    {FileKind::rar, "a RAR archive", "unpack it with unrar x"},
    {FileKind::lzma, "lzma data", "unpack it with xz --format=lzma -d"},
    {FileKind::lzip, "lzip data", "unpack it with lzip -d"},
    {FileKind::snappy, "snappy data", "unpack it with Python (snappy.stream_decompress)"},
    {FileKind::tar, "a tar archive", "unpack it with tar -xf"},
    {FileKind::parquet, "a Parquet file", "if it is a corpus, give it a name that ends in .parquet"},
    {FileKind::arrow, "an Arrow file, as datasets' save_to_disk writes them",
     "convert it with python -c \"import datasets; "
     "datasets.load_from_disk('FOLDER').to_json('FILE.jsonl')\""},
    {FileKind::orc, "an ORC file", "write its rows as JSON lines with Python"},
    {FileKind::avro, "an Avro file", "write its rows as JSON lines with Python"},
    {FileKind::gguf, "a model file of llama.cpp (GGUF)", "give the model's Hugging Face folder, with safetensors"},
    {FileKind::pickle, "a pickle of Python",
     "give the file that is meant, or write what it holds in that form with Python"},
    {FileKind::safetensors, "a safetensors file, which holds weights", "give the file that is meant"},
    {FileKind::hdf5, "an HDF5 file", "write what it holds as JSON lines or as safetensors with Python"},
    {FileKind::sqlite, "an SQLite database", "write its rows as JSON lines"},
    {FileKind::html, "an HTML page, as a failed download or a login page leaves it", "download the file again"},
    {FileKind::failed_download, "a server's error message, as a failed download leaves it", "download the file again"},
    {FileKind::megatron_index, "an index of Megatron-LM's .bin files",
     "give the .bin file that it belongs to, beside NAME.idx"},
    {FileKind::llm_c_ids, "a file of ids of llm.c", "if it is a corpus, give it a name that ends in .bin"},
    {FileKind::tekken, "a tekken.json of mistral-common", "give the tokenizer.json of the model's Hugging Face folder"},
    {FileKind::pdf, "a PDF document", "write its text to a .txt file"},
    {FileKind::office, "a document of Microsoft Office", "write its text to a .txt file"},
    {FileKind::image, "an image", "give the file that is meant"},
    {FileKind::program, "a program (ELF)", "give the file that is meant"},
});

constexpr bool has_words_of_all_kinds() {
  for (size_t i = 0; i < kWords.size(); ++i) {
    if (static_cast<size_t>(kWords[i].kind) != i + 1) return false;
  }
  return kWords.size() == static_cast<size_t>(FileKind::program);
}
static_assert(has_words_of_all_kinds());

KindWords words_of(FileKind kind) {
  return kind == FileKind::other ? KindWords{} : kWords[static_cast<size_t>(kind) - 1];
}

}  // namespace

FileKind kind_of(std::string_view head) {
  for (const Magic& magic : kMagics) {
    const bool may_begin_text = magic.bytes.size() < 7 && magic.kind != FileKind::pdf;
    if (!head.starts_with(magic.bytes) || (may_begin_text && !has_control_character(head))) continue;
    if (magic.kind == FileKind::bzip2 && head.substr(4, 6) != "1AY&SY"sv) continue;
    if (magic.kind != FileKind::zip) return magic.kind;
    return has_zip_entry(head, "data.pkl") ? FileKind::torch_zip
           : has_zip_entry(head, ".npy")   ? FileKind::numpy
                                           : FileKind::zip;
  }
  if (is_arrow_stream(head)) return FileKind::arrow;
  if (is_skippable_zstd(head)) return FileKind::zstd;
  if (is_lzma(head)) return FileKind::lzma;
  if (is_pickle(head)) return FileKind::pickle;
  if (is_safetensors(head)) return FileKind::safetensors;
  if (head.size() >= 262 && head.substr(257, 5) == "ustar") return FileKind::tar;
  // The headers of llm.c's token files are dates.
  if (head.size() >= 12 && (little_endian(head) == 20240520 || little_endian(head) == 20240801)) {
    return FileKind::llm_c_ids;
  }
  return kind_of_text(head);
}

FileKind file_kind_at(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileKind::other;
  struct stat facts {};
  std::array<char, kKindBytes> head;
  ssize_t size = 0;
  if (::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode)) {
    size = ::pread(descriptor, head.data(), head.size(), 0);
  }
  ::close(descriptor);
  return kind_of(std::string_view(head.data(), size > 0 ? static_cast<size_t>(size) : 0));
}

std::string describe_kind(FileKind kind) {
  const KindWords words = words_of(kind);
  return words.what.empty() ? "" : fmt::format("this is {}; {}", words.what, words.remedy);
}

void refuse_kind(FileKind kind, const std::filesystem::path& path, ExitCode code,
                 std::initializer_list<FileKind> expected) {
  if (kind == FileKind::other || std::find(expected.begin(), expected.end(), kind) != expected.end()) return;
  throw Error(code, fmt::format("{}: {}", path.string(), describe_kind(kind)));
}

std::string read_text_file(const std::filesystem::path& path, ExitCode code, size_t most,
                           std::initializer_list<FileKind> expected) {
  std::string text = read_file(path, code, most);
  refuse_kind(kind_of(text), path, code, expected);
  return text;
}

}  // namespace titan
