#include "stream.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "device.h"
#include "ledger.h"

namespace mock_cuda {
namespace {

struct Graph {
  std::vector<Work> work;
};

/// A graph being recorded: from one stream, and whichever streams joined it through events.
struct Recording {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  uint64_t id = 0;
  bool broken = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::set<struct Stream*> members;
  /// Members whose last work nobody of the origin has waited for yet.
  std::set<struct Stream*> unjoined;
};

struct Stream {
  int priority = 0;
  uint64_t put = 0, done = 0;  // numbers of works
  std::deque<Work> waiting;
  std::shared_ptr<Recording> recording;
};

struct Event {
  unsigned flags = 0;
  Stream* stream = nullptr;
  uint64_t upto = 0;
  int asked = 0;
  std::weak_ptr<Recording> recording;
  bool recorded = false;
};

// One lock for everything: a test's run is small. Recursive, because work may be run from inside of a call.
std::recursive_mutex& mutex() {
  static auto* it = new std::recursive_mutex;
  return *it;
}
#define MOCK_CUDA_LOCKED const std::lock_guard lock(mutex())

std::set<Stream*>& streams() {
  static auto* all = new std::set<Stream*>;
  return *all;
}

Stream& of(cudaStream_t handle) {
  static auto* legacy = new Stream;
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    streams().insert(legacy);
    return *legacy;
  }
  return *reinterpret_cast<Stream*>(handle);
}

Event& of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

std::vector<std::weak_ptr<Recording>>& recordings() {
  static auto* all = new std::vector<std::weak_ptr<Recording>>;
  return *all;
}

bool late() {
  static const bool it = [] {
    const char* mode = std::getenv("MOCK_CUDA");
    return mode && std::string(mode) == "late";
  }();
  return it;
}

void run_until(Stream& stream, uint64_t upto) {
  while (stream.done < upto && !stream.waiting.empty()) {
    Work work = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    ++stream.done;
    if (work.run) work.run();
  }
}

void put(Stream& stream, Work work) {
  ++stream.put;
  stream.waiting.push_back(std::move(work));
  if (!late()) run_until(stream, stream.put);
}

thread_local cudaError_t last_error = cudaSuccess;
/// What this thread lets a recording forbid it (cudaThreadExchangeStreamCaptureMode).
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

}  // namespace

cudaError_t set_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void enqueue(cudaStream_t handle, Work work) {
  touch("a launch");
  MOCK_CUDA_LOCKED;
  Stream& stream = of(handle);
  if (!stream.recording) return put(stream, std::move(work));
  stream.recording->graph->work.push_back(std::move(work));
  if (handle != stream.recording->origin) stream.recording->unjoined.insert(&stream);
}

void drain(cudaStream_t handle) {
  MOCK_CUDA_LOCKED;
  Stream& stream = of(handle);
  run_until(stream, stream.put);
}

void drain_all() {
  MOCK_CUDA_LOCKED;
  for (Stream* stream : streams()) run_until(*stream, stream->put);
}

bool is_capturing(cudaStream_t handle) {
  MOCK_CUDA_LOCKED;
  return of(handle).recording != nullptr;
}

cudaError_t unsafe_while_capturing(const char* call) {
  MOCK_CUDA_LOCKED;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (const auto& weak : recordings()) {
    const auto recording = weak.lock();
    if (!recording || recording->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool of_others = recording->thread != std::this_thread::get_id();
    if (of_others &&
        (recording->mode == cudaStreamCaptureModeThreadLocal || thread_mode == cudaStreamCaptureModeThreadLocal)) {
      continue;
    }
    recording->broken = true;
    Ledger::of_process().trouble(std::string(call) + " while a graph is recorded");
    return set_error(cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

}  // namespace mock_cuda

using namespace mock_cuda;  // NOLINT: the rest of the file is CUDA's own interface

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  touch("cudaStreamCreate");
  MOCK_CUDA_LOCKED;
  auto* made = new Stream;
  made->priority = priority;
  streams().insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  MOCK_CUDA_LOCKED;
  drain(stream);  // the handle stays: an event may still name it
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = of(stream).priority;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  touch("cudaStreamSynchronize");
  MOCK_CUDA_LOCKED;
  if (auto& recording = of(stream).recording) {
    recording->broken = true;
    Ledger::of_process().trouble("cudaStreamSynchronize of a stream that records a graph");
    return set_error(cudaErrorStreamCaptureUnsupported);
  }
  note_wait("cudaStreamSynchronize");
  drain(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  touch("cudaStreamQuery");
  MOCK_CUDA_LOCKED;
  Stream& it = of(stream);
  const bool done = it.done == it.put;
  drain(stream);  // not now, then, but by the next question
  return done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t refused = unsafe_while_capturing("cudaDeviceSynchronize")) return refused;
  touch("cudaDeviceSynchronize");
  note_wait("cudaDeviceSynchronize");
  drain_all();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* made = new Event;
  made->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  MOCK_CUDA_LOCKED;
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  touch("cudaEventRecord");
  MOCK_CUDA_LOCKED;
  Event& it = of(event);
  Stream& place = of(stream);
  it.recorded = true;
  it.stream = &place;
  it.upto = place.put;
  it.asked = 0;
  it.recording = place.recording;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  touch("cudaStreamWaitEvent");
  MOCK_CUDA_LOCKED;
  Stream& waiting = of(stream);
  Event& it = of(event);
  if (!it.recorded) return cudaSuccess;
  if (const auto recording = it.recording.lock()) {  // the waiting stream joins the recording
    if (waiting.recording && waiting.recording != recording) return set_error(cudaErrorStreamCaptureMerge);
    if (!waiting.recording) {
      if (stream == nullptr) {
        recording->broken = true;
        Ledger::of_process().trouble("the default stream joins a recording");
        return set_error(cudaErrorStreamCaptureImplicit);
      }
      waiting.recording = recording;
      recording->members.insert(&waiting);
      recording->unjoined.insert(&waiting);
    }
    if (stream == recording->origin) recording->unjoined.erase(it.stream);
    return cudaSuccess;
  }
  if (waiting.recording) {
    waiting.recording->broken = true;
    Ledger::of_process().trouble("a stream that records a graph waits for an event of work outside of it");
    return set_error(cudaErrorStreamCaptureIsolation);
  }
  Stream* earlier = it.stream;
  put(waiting, {"wait", [earlier, upto = it.upto] { run_until(*earlier, upto); }});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  touch("cudaEventSynchronize");
  MOCK_CUDA_LOCKED;
  Event& it = of(event);
  if (it.recording.lock()) {
    Ledger::of_process().trouble("cudaEventSynchronize of an event inside a recording");
    return set_error(cudaErrorCapturedEvent);
  }
  note_wait("cudaEventSynchronize");
  if (it.recorded) run_until(*it.stream, it.upto);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  touch("cudaEventQuery");
  MOCK_CUDA_LOCKED;
  Event& it = of(event);
  if (it.recording.lock()) {
    Ledger::of_process().trouble("cudaEventQuery of an event inside a recording");
    return set_error(cudaErrorCapturedEvent);
  }
  if (!it.recorded || it.stream->done >= it.upto) return cudaSuccess;
  if (++it.asked < 3) return cudaErrorNotReady;
  run_until(*it.stream, it.upto);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  MOCK_CUDA_LOCKED;
  for (const cudaEvent_t event : {start, end}) {
    if (!of(event).recorded || (of(event).flags & cudaEventDisableTiming)) {
      Ledger::of_process().trouble("cudaEventElapsedTime of an event without a time");
      return set_error(cudaErrorInvalidResourceHandle);
    }
    if (of(event).stream->done < of(event).upto) return cudaErrorNotReady;
  }
  // Not the host's time, which would make choices by measurement (of an attention kernel) depend on the machine's load.
  const bool same = of(start).stream == of(end).stream && of(end).upto > of(start).upto;
  *ms = 0.001F + (same ? 0.005F * static_cast<float>(of(end).upto - of(start).upto) : 0);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  enqueue(stream, {"host function", [=] { callback(stream, cudaSuccess, data); }});
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  enqueue(stream, {"host function", [=] { function(data); }});
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  MOCK_CUDA_LOCKED;
  static uint64_t recorded = 0;
  if (stream == nullptr) {
    Ledger::of_process().trouble("the default stream is to record a graph");
    return set_error(cudaErrorStreamCaptureUnsupported);
  }
  Stream& origin = of(stream);
  if (origin.recording) return set_error(cudaErrorIllegalState);
  auto recording = std::make_shared<Recording>();
  recording->origin = stream;
  recording->mode = mode;
  recording->id = ++recorded;
  recording->members.insert(&origin);
  origin.recording = recording;
  recordings().push_back(recording);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  MOCK_CUDA_LOCKED;
  const std::shared_ptr<Recording> recording = of(stream).recording;
  if (!recording || recording->origin != stream) return set_error(cudaErrorStreamCaptureUnmatched);
  for (Stream* member : recording->members) member->recording = nullptr;
  std::erase_if(recordings(), [&](const auto& weak) { return weak.lock() == recording || weak.expired(); });
  *graph = nullptr;
  if (recording->broken) return set_error(cudaErrorStreamCaptureInvalidated);
  if (!recording->unjoined.empty()) {
    Ledger::of_process().trouble("a recording ends before streams that joined it came back");
    return set_error(cudaErrorStreamCaptureUnjoined);
  }
  Ledger::of_process().add("graphs", "recorded", static_cast<int64_t>(recording->graph->work.size()));
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(recording->graph));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  MOCK_CUDA_LOCKED;
  cudaStreamIsCapturing(stream, status);
  if (id && of(stream).recording) *id = of(stream).recording->id;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (lacks_memory("cudaGraphInstantiate")) return set_error(cudaErrorMemoryAllocation);
  *made =
      reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(*reinterpret_cast<std::shared_ptr<Graph>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const std::shared_ptr<Graph> it = *reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  Ledger::of_process().add("graphs", "launched", static_cast<int64_t>(it->work.size()));
  if (is_capturing(stream)) {
    Ledger::of_process().trouble("a graph is launched while one is recorded");
    return set_error(cudaErrorStreamCaptureUnsupported);
  }
  for (const Work& work : it->work) {
    Ledger::of_process().add("replayed", work.name);
    enqueue(stream, work);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const size_t size = (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->work.size();
  if (nodes) std::fill_n(nodes, std::min(*count, size), nullptr);
  *count = size;
  return cudaSuccess;
}
}
