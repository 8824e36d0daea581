// Recognises by its first bytes a file that is of another kind than the one that is read: a Git LFS pointer, packed
// data, another program's format, the page of a failed download. One table, used wherever a user's file is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "titan/base/error.h"

namespace titan {

enum class FileKind {
  other,  ///< none of the kinds below
  lfs_pointer,
  annex_pointer,
  gzip,
  zstd,
  xz,
  bzip2,
  lz4,
  zip,
  torch_zip,  ///< torch.save
  numpy,
  seven_zip,
  rar,
  lzma,
  lzip,
  snappy,  ///< framed
  tar,
  parquet,
  arrow,
  orc,
  avro,
  gguf,
  pickle,
  safetensors,
  hdf5,
  sqlite,
  html,
  failed_download,
  megatron_index,
  llm_c_ids,
  tekken,
  pdf,
  office,  ///< of Microsoft, before it was a zip archive
  image,
  program,
};

/// So many first bytes are enough for kind_of.
inline constexpr size_t kKindBytes = 4096;

FileKind kind_of(std::string_view head);

/// The kind that the first bytes of the file at `path` show; `other` if it is not a regular file or cannot be read.
FileKind file_kind_at(const std::filesystem::path& path);

/// "this is gzip data; unpack it with gunzip". An empty text for `other`.
std::string describe_kind(FileKind kind);

/// What a text that is read as a whole may be, too: a document may be a page, or begin with a server's words.
inline constexpr std::initializer_list<FileKind> kKindsOfText{FileKind::html, FileKind::failed_download,
                                                              FileKind::tekken};

/// Throws Error(code) "PATH: this is X; do Y" unless the kind is `other` or one of `expected`.
void refuse_kind(FileKind kind, const std::filesystem::path& path, ExitCode code,
                 std::initializer_list<FileKind> expected = {});

/// No tokenizer, template or description of a model is longer.
inline constexpr size_t kLongestTextFile = size_t{1} << 30;

/// read_file for a file that a user names: refuses other kinds than `expected`.
std::string read_text_file(const std::filesystem::path& path, ExitCode code, size_t most = kLongestTextFile,
                           std::initializer_list<FileKind> expected = {});

}  // namespace titan
