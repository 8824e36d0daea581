// The safetensors file form: an 8-byte header length, a JSON header, the tensors' bytes. Written here for debug dumps;
// exports use the same writer.
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

#include "titan/checkpoint/hashed_file.h"
#include "titan/checkpoint/index.h"
#include "titan/checkpoint/manifest.h"
#include "titan/checkpoint/tensor_source.h"

namespace titan {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes the tensors (any device, made contiguous) in the order given; the file appears whole or not at all.
/// Throws Error(storage) when it cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads every tensor of a file. Throws Error(storage) naming the file when its header does not fit its bytes.
NamedTensors read_safetensors(const std::filesystem::path& path);

// The header of a safetensors file: which tensors are where in it. Read with the suspicion that a stranger's file
// deserves: what the header says is checked against itself and against the file's size before anything is believed.

struct SafetensorsEntry {
  LogicalTensor tensor;
  int64_t offset = 0;  // of its first byte, in the file
  int64_t bytes = 0;

  bool operator==(const SafetensorsEntry&) const = default;
};

/// The entries in the order of their bytes. Throws DamageError naming the file when the header is longer than the file
/// or than the format's 100 MB, is no JSON of the right form, or when its tensors overlap, leave bytes out or reach
/// beyond the file.
std::vector<SafetensorsEntry> read_safetensors_header(CheckedReader& file);

/// All that comes before the tensors' bytes, which follow each other in the order given.
std::string safetensors_header(std::span<const LogicalTensor> tensors,
                               const std::map<std::string, std::string>& metadata);

/// The format's name of a dtype ("BF16"); throws InvariantError for one that has none here.
std::string safetensors_name(at::ScalarType type);

// A folder of safetensors files as Hugging Face's programs write it: one file, or several with an index. Opened,
// checked as a whole, and read box by box; nothing but headers is read before.

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";
/// The manifest that exports of this program bring along: hashes of all their files. It has a name of its own, because
/// a folder with a kManifestFile is a checkpoint.
inline constexpr const char* kExportManifest = "titan_manifest.json";

/// Whether a folder with these entries is one, whole or not.
bool is_safetensors_folder(const std::vector<StorageEntry>& entries);

class SafetensorsFolder : public TensorSource {
 public:
  /// Throws DamageError for files that are not what they say, Error(storage) when there are none to read,
  /// StorageError when the medium fails.
  SafetensorsFolder(Storage& storage, std::filesystem::path folder);

  const std::map<std::string, LogicalTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& into) override;
  std::string description() const override { return folder_.string(); }

  /// Whether hashes are beside the files, so that every byte read is known to be right.
  bool verified() const { return manifest_.has_value(); }
  const std::optional<Manifest>& manifest() const { return manifest_; }
  /// By file, the tensors in it in the order of their bytes.
  const std::map<std::string, std::vector<SafetensorsEntry>>& files() const { return entries_; }
  /// Looks at every file with a hash, those without tensors too. Throws DamageError.
  void check_all();

 private:
  void open(const std::string& file);
  void check_index(const std::string& text);

  Storage& storage_;
  std::filesystem::path folder_;
  std::optional<Manifest> manifest_;
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
