// Names of the types in `.metadata`, and of its writer: for index_writer.cpp and index_reader.cpp.
#pragma once

#include <string>
#include <string_view>

namespace titan {

inline std::string type_in_metadata(std::string_view name) {
  return "torch.distributed.checkpoint.metadata " + std::string(name);
}

inline const std::string kIndexMetadata = type_in_metadata("Metadata");
inline const std::string kIndexTensor = type_in_metadata("TensorStorageMetadata");
inline const std::string kIndexValue = type_in_metadata("BytesStorageMetadata");
inline const std::string kIndexChunk = type_in_metadata("ChunkStorageMetadata");
inline const std::string kIndexProperties = type_in_metadata("TensorProperties");
inline const std::string kIndexKey = type_in_metadata("MetadataIndex");
inline const std::string kIndexMeta = type_in_metadata("StorageMeta");
inline const std::string kIndexStorageInfo = "torch.distributed.checkpoint.filesystem _StorageInfo";
inline constexpr std::string_view kIndexMetadataVersion = "1.0.0";
// In the place of the random identifier that Python gives a save: readers know by it that a missing manifest is damage.
inline constexpr std::string_view kIndexWriter = "titan, with manifest.json";

}  // namespace titan
