#include "pickle_names.h"

#include <algorithm>
#include <array>

namespace titan {
namespace {

/// Names that a checkpoint's pickles may contain, besides torch's dtypes and storages.
constexpr std::array<std::string_view, 17> kKnownNames{
    "torch.distributed.checkpoint.metadata Metadata",
    "torch.distributed.checkpoint.metadata TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata TensorProperties",
    "torch.distributed.checkpoint.metadata MetadataIndex",
    "torch.distributed.checkpoint.metadata StorageMeta",
    "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem _StorageInfo",
    "torch.serialization _get_layout",
    "torch._utils _rebuild_tensor_v2",
    "torch Size",
    "collections OrderedDict",
    "_codecs encode",
    "_io BytesIO",
    // A member of an enumeration by its name, as Python 3.11.0 to 3.11.3 write it; the reader allows nothing else with
    // it.
    "builtins getattr",
    "__builtin__ getattr",
};
constexpr std::array<std::string_view, 4> kPathNames{"pathlib PosixPath", "pathlib PurePosixPath",
                                                     "pathlib._local PosixPath", "pathlib WindowsPath"};

constexpr std::array<std::string_view, 22> kTorchNames{"float32",
                                                       "float64",
                                                       "float16",
                                                       "bfloat16",
                                                       "float8_e4m3fn",
                                                       "float8_e5m2",
                                                       "int8",
                                                       "int16",
                                                       "int32",
                                                       "int64",
                                                       "uint8",
                                                       "bool",
                                                       "complex64",
                                                       "FloatStorage",
                                                       "DoubleStorage",
                                                       "HalfStorage",
                                                       "LongStorage",
                                                       "IntStorage",
                                                       "BFloat16Storage",
                                                       "ByteStorage",
                                                       "BoolStorage",
                                                       "ComplexFloatStorage"};

}  // namespace

bool is_known_name(std::string_view name) {
  constexpr std::string_view kTorch = "torch ";
  const auto among = [](const auto& names, std::string_view wanted) {
    return std::find(names.begin(), names.end(), wanted) != names.end();
  };
  return among(kKnownNames, name) || among(kPathNames, name) ||
         (name.starts_with(kTorch) && among(kTorchNames, name.substr(kTorch.size())));
}

}  // namespace titan
