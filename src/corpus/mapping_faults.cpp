#include "mapping_faults.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "titan/base/error.h"

namespace titan {
namespace {

/// What the handler knows of a mapping. The handler reads the list without a lock, so entries are used again and never
/// freed.
struct Mapping {
  std::atomic<const char*> begin = nullptr;  // written last; null: the entry is free
  size_t size = 0;
  int descriptor = -1;
  std::string shrank, unreadable;
  Mapping* next = nullptr;
};

// Signals belong to the process, so their state is global.
std::atomic<Mapping*> mappings = nullptr;
std::mutex mappings_mutex;          // for changes of the list
struct sigaction action_before {};  // what a SIGBUS did before

const Mapping* mapping_at(const void* address) {
  const auto* at = static_cast<const char*>(address);
  for (const Mapping* one = mappings; one; one = one->next) {
    const char* begin = one->begin;
    if (begin && at >= begin && at < begin + one->size) return one;
  }
  return nullptr;
}

/// Calls only what a handler may call (signal-safety(7)).
void handle_fault(int, siginfo_t* info, void*) {
  const Mapping* mapping = mapping_at(info->si_addr);
  if (!mapping) {  // not of a corpus: the instruction is repeated, and does what it would have done
    ::sigaction(SIGBUS, &action_before, nullptr);
    return;
  }
  struct stat facts {};
  const bool shrank = ::fstat(mapping->descriptor, &facts) == 0 && facts.st_size < static_cast<off_t>(mapping->size);
  const std::string& line = shrank ? mapping->shrank : mapping->unreadable;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(static_cast<int>(ExitCode::bad_data));
}

Mapping* free_entry() {
  for (Mapping* one = mappings; one; one = one->next) {
    if (!one->begin) return one;
  }
  Mapping* const added = std::make_unique<Mapping>().release();
  added->next = mappings;
  mappings = added;
  if (added->next) return added;
  struct sigaction action {};
  action.sa_sigaction = handle_fault;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &action_before);
  return added;
}

}  // namespace

MappingFaults::MappingFaults(const void* begin, size_t size, int descriptor, std::string shrank, std::string unreadable)
    : begin_(begin) {
  const std::lock_guard lock(mappings_mutex);
  Mapping* entry = free_entry();
  entry->size = size;
  entry->descriptor = descriptor;
  entry->shrank = std::move(shrank);
  entry->unreadable = std::move(unreadable);
  entry->begin = static_cast<const char*>(begin);
}

MappingFaults::~MappingFaults() {
  const std::lock_guard lock(mappings_mutex);
  for (Mapping* one = mappings; one; one = one->next) {
    if (one->begin == begin_) one->begin = nullptr;
  }
}

}  // namespace titan
