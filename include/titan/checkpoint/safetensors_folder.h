// A folder of safetensors files as Hugging Face's programs write it: one file, or several with an index. Opened,
// checked as a whole, and read box by box; nothing but headers is read before.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "titan/checkpoint/manifest.h"
#include "titan/checkpoint/safetensors_header.h"
#include "titan/checkpoint/tensor_source.h"

namespace titan {

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

  /// Whether hashes lie beside the files, so that every byte read is known to be right.
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
