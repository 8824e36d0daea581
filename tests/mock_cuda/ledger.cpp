#include "ledger.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mock_cuda {

Ledger& Ledger::of_process() {
  static auto* ledger = new Ledger;  // outlives every static object that still calls CUDA while the program ends
  return *ledger;
}

void Ledger::add(const char* kind, const std::string& what, int64_t amount) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[kind][what];
  ++count.times;
  count.amount += amount;
}

void Ledger::peak(const char* what, int64_t value) {
  const std::lock_guard lock(mutex_);
  int64_t& highest = peaks_[what];
  highest = std::max(highest, value);
}

void Ledger::trouble(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (troubles_[what]++ == 0) std::fprintf(stderr, "mock_cuda: %s\n", what.c_str());
}

void Ledger::write() {
  const char* folder = std::getenv("MOCK_CUDA_LEDGER");
  const std::lock_guard lock(mutex_);
  if (!folder || (counts_.empty() && troubles_.empty())) return;
  nlohmann::json page;
  for (const auto& [kind, entries] : counts_) {
    for (const auto& [what, count] : entries) page[kind][what] = {{"times", count.times}, {"amount", count.amount}};
  }
  page["peaks"] = peaks_;
  page["troubles"] = troubles_;
  const char* rank = std::getenv("RANK");
  const std::string name = rank ? std::string("rank_") + rank : "process_" + std::to_string(getpid());
  std::ofstream(std::string(folder) + "/" + name + ".json") << page.dump(1) << '\n';
}

size_t traced_bytes() {
  static const size_t least = [] {
    const char* text = std::getenv("MOCK_CUDA_TRACE");
    return text ? std::strtoull(text, nullptr, 10) : SIZE_MAX;
  }();
  return least;
}

void trace(const char* what) {
  void* frames[60];
  const int count = backtrace(frames, 60);
  std::fprintf(stderr, "mock_cuda: %s, from\n", what);
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

void note_wait(const char* call) {
  Ledger::of_process().add("waits", call);
  if (traced_bytes() != SIZE_MAX) trace(call);
}

}  // namespace mock_cuda

__attribute__((destructor)) static void write_ledger() { mock_cuda::Ledger::of_process().write(); }

// A process that leaves without its destructors writes it too.
extern "C" {
void _exit(int code) {
  write_ledger();
  for (;;) ::syscall(SYS_exit_group, code);
}
void _Exit(int code) { _exit(code); }
}
