// The safetensors format: an 8-byte header length, a JSON header, the tensors' bytes. Files for debug dumps, and
// folders of such files in Hugging Face's layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "titan/checkpoint/metadata.h"
#include "titan/checkpoint/storage.h"
#include "titan/checkpoint/tensor_source.h"

namespace titan {

/// Tensors of any shapes, by name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes the tensors (any device, made contiguous) in the order given, atomically. Throws Error(storage) if it cannot
/// be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The header of a safetensors file, from an untrusted source: checked for consistency and against the file's size
// before any use.

struct SafetensorsEntry {
  LogicalTensor tensor;
  int64_t offset = 0;  // of its first byte, in the file
  int64_t bytes = 0;

  bool operator==(const SafetensorsEntry&) const = default;
};

/// The entries in the order of their bytes. Throws DamageError naming the file if the header is longer than the file or
/// than the format's 100 MB, is not JSON of the right form, or if its tensors overlap, leave gaps or extend beyond the
/// file.
std::vector<SafetensorsEntry> read_safetensors_header(CheckedReader& file);

/// The header bytes for tensors stored in the order given.
std::string safetensors_header(std::span<const LogicalTensor> tensors,
                               const std::map<std::string, std::string>& metadata);

/// The format's name of a dtype ("BF16"); throws InvariantError for a dtype without one.
std::string safetensors_name(at::ScalarType type);

// A folder of safetensors files in Hugging Face's format: one file, or several with an index. Opening reads and checks
// all headers; tensors are read by box.

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";
/// The manifest of our exports, with hashes of all files. Not kManifestFile, which marks a folder as a checkpoint.
inline constexpr const char* kExportManifest = "titan_manifest.json";

/// True if a folder with these entries is a safetensors folder, complete or not.
bool is_safetensors_folder(const std::vector<StorageEntry>& entries);

class SafetensorsFolder : public TensorSource {
 public:
  /// Throws DamageError for inconsistent files, Error(storage) if there are none, StorageError if the storage fails.
  SafetensorsFolder(Storage& storage, std::filesystem::path folder);

  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return folder_.string(); }

  /// True if the folder has hashes: every byte read is verified.
  bool verified() const { return manifest_.has_value(); }
  const std::optional<Manifest>& manifest() const { return manifest_; }
  /// One sentence if the folder holds two sets of weights, of which one is read; else empty.
  const std::string& note() const { return note_; }
  /// The tensors of each file, in the order of their bytes.
  const std::map<std::string, std::vector<SafetensorsEntry>>& files() const { return entries_; }
  /// Verifies every file with a hash, including those without tensors. Throws DamageError.
  void check_all();

 private:
  void open(const std::string& file);
  void check_index(const std::string& text);

  Storage& storage_;
  std::filesystem::path folder_;
  std::optional<Manifest> manifest_;
  std::string note_;
  std::map<std::string, std::unique_ptr<CheckedReader>> readers_;
  std::map<std::string, std::vector<SafetensorsEntry>> entries_;
  std::map<std::string, LogicalTensor> tensors_;
  struct Place {
    CheckedReader* file = nullptr;
    StoredElements elements;
  };
  std::map<std::string, Place> places_;
};

}  // namespace titan
