// What LibTorch asks NVML for symmetric memory: no fabric, no NVLink. NVML's header is in no package that the build
// needs, so its few types are spelled out; every answer is an int, 0 for success.
#include "device.h"

namespace {
constexpr int kSuccess = 0, kNotSupported = 3;
}

extern "C" {
int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDART_VERSION;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int any = 0;
  *device = &any;
  return kSuccess;
}
/// The caller has filled it with zeros: there is none.
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kSuccess; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}
}
