// cuDNN's graphs on the mock GPU: descriptors keep what they are given, every graph has one plan, and a plan that runs
// is counted. What LibTorch demands of tensors before it hands them to cuDNN is its own code, and runs. Attention takes
// tensors of four dimensions, as cuDNN's does, and a workspace.
#include <cudnn.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ledger.h"
#include "stream.h"

using namespace mock_cuda;  // NOLINT: most of the file is cuDNN's own interface

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<unsigned char>> attributes;
  std::map<int, int64_t> counts;
};

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:
      return 4;
  }
}

Descriptor* of(cudnnBackendDescriptor_t descriptor) { return reinterpret_cast<Descriptor*>(descriptor); }

Descriptor* held(const Descriptor& by, int attribute, size_t place = 0) {
  const auto found = by.attributes.find(attribute);
  if (found == by.attributes.end() || found->second.size() < (place + 1) * sizeof(void*)) return nullptr;
  Descriptor* descriptor = nullptr;
  std::memcpy(&descriptor, found->second.data() + place * sizeof(void*), sizeof descriptor);
  return descriptor;
}

/// What a plan computes, found by the kinds of its operations.
std::string name_of(const Descriptor& plan) {
  const Descriptor* config = held(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Descriptor* engine = config ? held(*config, CUDNN_ATTR_ENGINECFG_ENGINE) : nullptr;
  const Descriptor* graph = engine ? held(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH) : nullptr;
  if (!graph) return "cuDNN plan";
  std::string name = "cuDNN plan of";
  for (size_t i = 0; const Descriptor* operation = held(*graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i); ++i) {
    name += " " + std::to_string(static_cast<int>(operation->type));
  }
  return name;
}

constexpr int64_t kDimensions = 4;       // of every tensor of an attention graph
constexpr int64_t kWorkspace = 1 << 20;  // bytes that a plan asks for: one that is there

/// Whether cuDNN's attention takes the tensor.
bool takes(const Descriptor& tensor) {
  const auto count = [&](int attribute) {
    const auto found = tensor.counts.find(attribute);
    return found == tensor.counts.end() ? 0 : found->second;
  };
  const int64_t dimensions = count(CUDNN_ATTR_TENSOR_DIMENSIONS), strides = count(CUDNN_ATTR_TENSOR_STRIDES);
  if (dimensions == kDimensions && strides == kDimensions) return true;
  Ledger::of_process().trouble("cuDNN takes no tensor of " + std::to_string(dimensions) + " dimensions with " +
                               std::to_string(strides) + " strides");
  return false;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "an answer of the mock"; }
void cudnnGetLastErrorString(char* text, size_t bytes) {
  if (bytes > 0) text[0] = 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<Handle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new Descriptor{type, {}, {}});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;  // others may hold it still
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& it = *of(descriptor);
  if (it.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !takes(it)) return CUDNN_STATUS_BAD_PARAM;
  if (it.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {  // one engine: the graph, identified by its operations
    auto* engine = new Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, {}, {}};
    engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = it.attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    it.attributes[-1].resize(sizeof engine);
    std::memcpy(it.attributes[-1].data(), &engine, sizeof engine);
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Descriptor& it = *of(descriptor);
  const auto* bytes = static_cast<const unsigned char*>(values);
  it.attributes[name].assign(bytes, bytes + static_cast<size_t>(count) * size_of(type));
  it.counts[name] = count;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t* count, void* values) {
  const Descriptor& it = *of(descriptor);
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (count) *count = 1;
    if (room > 0 && values) {  // the caller made the descriptors that are filled in
      Descriptor* config = nullptr;
      std::memcpy(&config, values, sizeof config);
      config->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = it.attributes.at(-1);
      config->counts[CUDNN_ATTR_ENGINECFG_ENGINE] = 1;
    }
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    if (count) *count = 1;
    if (values && room > 0) std::memcpy(values, &kWorkspace, sizeof kWorkspace);
    return CUDNN_STATUS_SUCCESS;
  }
  const auto found = it.attributes.find(name);
  if (found == it.attributes.end()) {
    const bool number = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32 || type == CUDNN_TYPE_BOOLEAN;
    if (count) *count = number ? 1 : 0;
    if (number && room > 0 && values) std::memset(values, 0, size_of(type));
    return CUDNN_STATUS_SUCCESS;
  }
  const int64_t kept = it.counts.at(name);
  if (count) *count = kept;
  if (values && room > 0) {
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {  // copied into the descriptor that the caller made
      Descriptor *from = nullptr, *to = nullptr;
      std::memcpy(&from, found->second.data(), sizeof from);
      std::memcpy(&to, values, sizeof to);
      *to = *from;
    } else {
      std::memcpy(values, found->second.data(), static_cast<size_t>(std::min(room, kept)) * size_of(type));
    }
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t) {
  const std::string name = name_of(*of(plan));
  const cudaStream_t stream = reinterpret_cast<Handle*>(handle)->stream;
  Ledger::of_process().add(is_capturing(stream) ? "recorded" : "kernels", name);
  enqueue(stream, {name, nullptr});
  return CUDNN_STATUS_SUCCESS;
}
}
