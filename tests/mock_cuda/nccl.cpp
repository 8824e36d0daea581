// Collectives of the mock GPU: communicators exist and calls are counted by kind and bytes, and nothing is sent. A rank
// that is alone gets its own data back; of several, each keeps what it had.
#include <nccl.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device.h"
#include "ledger.h"
#include "memory.h"
#include "stream.h"

using namespace mock_cuda;  // NOLINT: most of the file is NCCL's own interface

struct ncclComm {
  int rank, size, device;
  int number;  // of this process's
};

namespace {

int64_t microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

/// "3: finalize of communicator 1": in what order communicators end, and when.
void note_end(const char* how, const ncclComm* comm) {
  static std::atomic<int> ends = 0;
  Ledger::of_process().add(
      "ends", std::to_string(++ends) + ": " + how + " of communicator " + std::to_string(comm->number), microseconds());
}

const char* last_error = "";

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

ncclResult_t collective(const char* kind, const void* from, void* to, size_t moved, size_t kept, ncclComm* comm,
                        cudaStream_t stream) {
  Ledger::of_process().peak("microsecond of the last collective", microseconds());
  Ledger::of_process().add("collectives", std::string(kind) + " over " + std::to_string(comm->size),
                           static_cast<int64_t>(moved));
  for (const void* address : {from, static_cast<const void*>(to)}) {
    if (address && kind_of(address) != Kind::device) {
      Ledger::of_process().trouble(std::string(kind) + " of memory that is not the device's");
      return ncclInvalidArgument;
    }
  }
  const bool copies = from && to && from != to && kept > 0 && !hollow();
  enqueue(stream, {std::string("NCCL ") + kind, [=] {
                     if (copies) std::memmove(to, from, kept);
                   }});
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an answer of the mock"; }
const char* ncclGetLastError(ncclComm_t) { return last_error; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 7, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId, int rank, ncclConfig_t*) {
  static std::atomic<int> made = 0;
  if (!take(current_device(), communicator_bytes())) return ncclUnhandledCudaError;
  *comm = new ncclComm{rank, size, current_device(), ++made};
  Ledger::of_process().add("communicators", "of " + std::to_string(size));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  return ncclCommInitRankConfig(comm, size, *ids, rank, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  note_end("finalize", comm);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  note_end("destroy", comm);
  give(comm->device, communicator_bytes());
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  note_end("abort", comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  *op = ncclSum;
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return collective("all-reduce", from, to, bytes, bytes, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return collective("all-gather", from, static_cast<char*>(to) + bytes * static_cast<size_t>(comm->rank), bytes, bytes,
                    comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  if (lacks_memory("ncclReduceScatter")) {
    last_error = "Cuda failure 2 'out of memory'";
    return ncclUnhandledCudaError;
  }
  return collective("reduce-scatter", static_cast<const char*>(from) + bytes * static_cast<size_t>(comm->rank), to,
                    bytes * static_cast<size_t>(comm->size), bytes, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return collective("broadcast", from, to, bytes, bytes, comm, stream);
}
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, int,
                        ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return collective("reduce", from, to, bytes, bytes, comm, stream);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) {
  return collective("send", from, nullptr, count * bytes_of(type), 0, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) {
  return collective("receive", nullptr, to, count * bytes_of(type), 0, comm, stream);
}
}
