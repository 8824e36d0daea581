// Measures what the control plane costs with many ranks on this machine: ranks are threads of forked processes, rank 0
// has a process of its own. They have no device; rendezvous, store, barriers and checkpoint files are real.
//   bench_control_plane ranks RANKS RANKS_PER_PROCESS FOLDER [IDLE_SECONDS]
//     rendezvous, barriers, idle time, the first checkpoint (saved, then loaded) of a small state that is sharded over
//     all ranks. FOLDER: where it is saved; it must not be there. Prints a line of JSON for each phase: what rank 0
//     sent and received, the processor time of its process, wall time, live and peak bytes of its heap.
//   bench_control_plane plan RANKS SHARDS RANK
//     the plan of the first save of Llama 3 8B with two moments on RANKS ranks, sharded over SHARDS and replicated over
//     the rest: seconds, live and peak bytes of the heap of rank RANK.
//   bench_control_plane index TENSORS SHARDS
//     .metadata of so many matrices over so many shards: bytes of the file, of the index in memory, and those that
//     writing and reading need at most beside them.
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <thread>

#include "support/control_plane.h"
#include "titan/base/philox.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/plan/plan.h"

namespace {

// Bytes that operator new has given out: exact, unlike resident memory, which the allocator keeps.
std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void note_new(void* memory) {
  const int64_t live = live_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  int64_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
}

}  // namespace

void* operator new(size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (!memory) throw std::bad_alloc();
  note_new(memory);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (!memory) return;
  live_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{900};
constexpr int64_t kConfigBytes = 8000;  // about the resolved config of a run
constexpr int64_t kBarriers = 10;
constexpr size_t kReport = 100;  // bytes of a message to a barrier

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int64_t open_sockets() {
  int64_t sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    sockets += std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
  }
  return sockets;
}

/// Prints what rank 0 did since the last phase.
class Phases {
 public:
  void print(const char* name, int64_t ranks, const ControlTraffic& now, int64_t times = 1) {
    const ControlTraffic traffic = now - before_;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    std::printf(
        "{\"phase\": \"%s\", \"ranks\": %ld, \"times\": %ld, \"sent\": %ld, \"sent_bytes\": %ld, \"received\": %ld, "
        "\"received_bytes\": %ld, \"processor_seconds\": %.4f, \"seconds\": %.4f, \"sockets\": %ld, \"live\": %ld, "
        "\"peak\": %ld}\n",
        name, ranks, times, traffic.messages_sent, traffic.bytes_sent, traffic.messages_received,
        traffic.bytes_received, processor_seconds() - processor_, seconds, open_sockets(), live_bytes.load(),
        peak_bytes.load());
    std::fflush(stdout);
    start(now);
  }
  void start(const ControlTraffic& now) {
    before_ = now;
    begin_ = Clock::now();
    processor_ = processor_seconds();
    peak_bytes = live_bytes.load();
  }

 private:
  ControlTraffic before_{};
  Clock::time_point begin_ = Clock::now();
  double processor_ = processor_seconds();
};

/// A small state: one tensor, of which every rank holds a row. One, because every rank that loads it reads an index
/// with all rows, and here all ranks are on one machine.
CheckpointState small_state(int64_t ranks) {
  CheckpointState state;
  const std::vector<int64_t> shape{ranks, 4};
  state.tensors.push_back({{"layers.0.weight", at::kFloat, shape},
                           [](int64_t of) {
                             return Box{{of, 0}, {1, 4}};
                           },
                           at::zeros({1, 4})});
  return state;
}

void be_rank(int64_t rank, int64_t ranks, const std::vector<uint16_t>& ports, const std::filesystem::path& folder,
             std::chrono::seconds idle) {
  Phases phases;
  const std::string config(kConfigBytes, 'c'), message(kReport, 'x');
  ControlRank self = join_control_plane(rank, ranks, ports, config, kTimeout);
  AbortWatcher& watcher = *self.joined.watcher;
  RankBarrier& barrier = *self.barrier;
  const auto end_phase = [&](const char* name, int64_t times = 1) {
    if (rank == 0) phases.print(name, ranks, watcher.traffic(), times);
  };
  end_phase("rendezvous");
  for (int64_t i = 0; i < kBarriers; ++i) {
    barrier.decide(message, [&](const std::vector<std::string>&) { return message; });
  }
  end_phase("decide", kBarriers);
  // Between saves a step has no message of the control plane: the stop vote is a collective. The late ones of the last
  // barrier are not counted: all ranks sleep, rank 0 counts in the middle of it.
  if (rank == 0) {
    std::this_thread::sleep_for(idle / 3);
    phases.start(watcher.traffic());
    std::this_thread::sleep_for(idle / 3);
    end_phase("idle", std::max<int64_t>(1, idle.count() / 3));
  } else {
    std::this_thread::sleep_for(idle);
  }
  barrier.wait_for_all();
  const std::unique_ptr<Storage> storage = make_posix_storage();
  Checkpointer checkpointer(*storage, barrier,
                            {.root = folder, .run = draw_run_name(barrier), .saved = [](const SaveOutcome& outcome) {
                               if (!outcome.committed) throw Error(ExitCode::storage, outcome.problem);
                             }});
  checkpointer.rehearse();
  end_phase("rehearse");
  const CheckpointState state = small_state(ranks);
  checkpointer.save(1, state, /*now=*/true);
  end_phase("save");
  checkpointer.load(std::nullopt, [](OpenCheckpoint&) {});
  end_phase("load");
  if (rank == 0) {
    std::printf("{\"phase\": \"end\", \"ranks\": %ld, \"keys\": %ld}\n", ranks, self.joined.world.store->getNumKeys());
  }
  watcher.leave(kTimeout);
}

int run_process(int64_t first, int64_t last, const std::function<void(int64_t)>& act) {
  std::atomic<int> code{0};
  std::vector<std::thread> threads;
  for (int64_t rank = first; rank < last; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        act(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %ld: %s\n", rank, error.what());
        code = 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return code;
}

int measure_ranks(int64_t ranks, int64_t per_process, const std::filesystem::path& folder, std::chrono::seconds idle) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const std::vector<uint16_t> ports = derived_ports(name_key("control plane" + std::to_string(::getpid())));
  const auto act = [&](int64_t rank) { be_rank(rank, ranks, ports, folder, idle); };
  std::vector<pid_t> children;
  for (int64_t first = 1; first < ranks; first += per_process) {
    children.push_back(::fork());
    if (children.back() == 0) std::_Exit(run_process(first, std::min(ranks, first + per_process), act));
  }
  int code = run_process(0, 1, act);
  for (const pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    if (status != 0) code = 1;
  }
  return code;
}

/// The weights of Llama 3 8B.
std::vector<ParameterSpec> llama_parameters() {
  constexpr int64_t kDim = 4096, kKeys = 1024, kHidden = 14336, kVocabulary = 128256;
  std::vector<ParameterSpec> all{{"tok_embeddings.weight", {kVocabulary, kDim}, {}}};
  for (int64_t layer = 0; layer < 32; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const std::vector<std::pair<const char*, std::vector<int64_t>>> of_layer{
        {"attention_norm.weight", {kDim}},           {"attention.wq.weight", {kDim, kDim}},
        {"attention.wk.weight", {kKeys, kDim}},      {"attention.wv.weight", {kKeys, kDim}},
        {"attention.wo.weight", {kDim, kDim}},       {"ffn_norm.weight", {kDim}},
        {"feed_forward.w1.weight", {kHidden, kDim}}, {"feed_forward.w2.weight", {kDim, kHidden}},
        {"feed_forward.w3.weight", {kHidden, kDim}}};
    for (const auto& [weight, shape] : of_layer) all.push_back({name + weight, shape, {}});
  }
  all.push_back({"norm.weight", {kDim}, {}});
  all.push_back({"output.weight", {kVocabulary, kDim}, {}});
  return all;
}

int measure_plan(int64_t ranks, int64_t shards, int64_t rank) {
  ModelDescription model;
  model.units.emplace_back();
  model.units[0].parameters = llama_parameters();
  PlanRequest request;
  request.place = {DeviceMesh(ParallelDegrees{1, ranks / shards, shards, 1, 1}, ranks), rank};
  std::vector<StateTensor> tensors;
  for (const ParameterPlace& place : place_parameters(model, request)) {
    const ParameterSpec& parameter = model.units[0].parameters[tensors.size() / 3];
    for (const char* moment : {"", ".exp_avg", ".exp_avg_sq"}) {
      tensors.push_back(
          {{parameter.name + moment, at::kFloat, parameter.shape}, boxes_of(place.layout, request.place.mesh)});
    }
  }
  const int64_t before = live_bytes;
  peak_bytes = before;
  const Clock::time_point begin = Clock::now();
  const double processor = processor_seconds();
  const SavePlan plan = plan_save(tensors, ranks, 4, int64_t{64} << 20, writes_needed_by(rank));
  std::printf(
      "{\"phase\": \"plan\", \"ranks\": %ld, \"shards\": %ld, \"rank\": %ld, \"writes\": %zu, \"processor_seconds\": "
      "%.3f, \"seconds\": %.3f, \"live\": %ld, \"peak\": %ld}\n",
      ranks, shards, rank, plan[static_cast<size_t>(rank)].size(), processor_seconds() - processor,
      std::chrono::duration<double>(Clock::now() - begin).count(), live_bytes - before, peak_bytes - before);
  return 0;
}

int measure_index(int64_t tensors, int64_t shards) {
  const auto since = [](int64_t before) { return live_bytes.load() - before; };
  int64_t begin = live_bytes;
  CheckpointIndex index;
  for (int64_t t = 0; t < tensors; ++t) {
    const std::string name = fmt::format("optimizer.state.layers.{}.feed_forward.w1.weight.exp_avg_sq", t);
    StoredTensor& stored = index.tensors[name];
    stored.tensor = {name, at::kFloat, {8 * shards, 4096}};
    for (int64_t shard = 0; shard < shards; ++shard) {
      stored.chunks.push_back({{{8 * shard, 0}, {8, 4096}}, {data_file(shard), t * 140'000, 132'000}});
    }
  }
  const int64_t held = since(begin);
  int64_t file_bytes = 0;
  begin = peak_bytes = live_bytes.load();
  write_index(index, [&](std::string_view part) { file_bytes += std::ssize(part); });
  const int64_t to_write = peak_bytes - begin;
  const std::string file = write_index(index);
  begin = peak_bytes = live_bytes.load();
  const bool equal = read_index(file) == index;
  std::printf(
      "{\"phase\": \"index\", \"entries\": %ld, \"equal\": %s, \"file\": %ld, \"held\": %ld, \"to_write\": %ld, "
      "\"to_read\": %ld}\n",
      tensors * shards, equal ? "true" : "false", file_bytes, held, to_write, peak_bytes - begin);
  return 0;
}

}  // namespace
}  // namespace titan

int main(int count, char** words) {
  const auto number = [&](int i) { return std::strtoll(words[i], nullptr, 10); };
  const std::string mode = count > 1 ? words[1] : "";
  if (mode == "ranks" && (count == 5 || count == 6)) {
    return titan::measure_ranks(number(2), number(3), words[4], std::chrono::seconds(count == 6 ? number(5) : 3));
  }
  if (mode == "plan" && count == 5) return titan::measure_plan(number(2), number(3), number(4));
  if (mode == "index" && count == 4) return titan::measure_index(number(2), number(3));
  std::fprintf(stderr,
               "bench_control_plane ranks RANKS RANKS_PER_PROCESS FOLDER [IDLE_SECONDS]\n"
               "bench_control_plane plan RANKS SHARDS RANK\n"
               "bench_control_plane index TENSORS SHARDS\n");
  return 64;
}
