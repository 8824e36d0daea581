#include "cpu_history.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace titan {
namespace {

using Ranges = std::vector<std::string>;  // outermost first

struct Entry {
  int64_t time_us;
  uintptr_t address;
  size_t bytes;
  bool is_free;
  size_t ranges;  // index into the stacks known
};

struct Held {
  size_t bytes;
  size_t ranges;
};

/// Everything noted, behind one lock: threads allocate at the same time.
struct Notes {
  std::mutex mutex;
  std::atomic<bool> on = false;
  size_t most = 0;
  std::deque<Entry> entries;
  std::unordered_map<uintptr_t, Held> held;
  std::vector<Ranges> stacks;
  std::unordered_map<std::string, size_t> known_stacks;
  c10::Allocator* inner = nullptr;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

Notes& notes() {
  static Notes* const all = new Notes;  // tensors that end after everything else still tell it
  return *all;
}

Ranges& ranges_here() {
  thread_local Ranges ranges;
  return ranges;
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& range) {
  ranges_here().emplace_back(range.name());
  return nullptr;
}
void leave(const at::RecordFunction&, at::ObserverContext*) {
  if (!ranges_here().empty()) ranges_here().pop_back();
}

size_t stack_number(Notes& all) {
  const Ranges& ranges = ranges_here();
  std::string key;
  for (const std::string& range : ranges) key += range + '\n';
  const auto [found, fresh] = all.known_stacks.try_emplace(key, all.stacks.size());
  if (fresh) all.stacks.push_back(ranges);
  return found->second;
}

int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

void note(Notes& all, uintptr_t address, size_t bytes, bool is_free) {
  if (all.entries.size() == all.most) all.entries.pop_front();
  all.entries.push_back({now_us(), address, bytes, is_free, stack_number(all)});
}

void take_back(void* data) {
  Notes& all = notes();
  const auto address = reinterpret_cast<uintptr_t>(data);
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.held.find(address);
    if (found != all.held.end()) {
      if (all.on) note(all, address, found->second.bytes, true);
      all.held.erase(found);
    }
  }
  all.inner->raw_deleter()(data);
}

/// LibTorch's own allocator, with what it does noted.
class NotingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Notes& all = notes();
    c10::DataPtr made = all.inner->allocate(bytes);
    void* const data = made.get();
    if (!data || !all.on) return made;
    made.release_context();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto address = reinterpret_cast<uintptr_t>(data);
    note(all, address, bytes, false);
    all.held[address] = {bytes, all.entries.back().ranges};
    return {data, data, &take_back, made.device()};
  }
  // What this one made and the inner one's blocks are given back alike.
  c10::DeleterFnPtr raw_deleter() const override { return &take_back; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

/// The opcodes of pickle's protocol 2 that numbers, texts, lists and dictionaries of them need.
class Pickle {
 public:
  Pickle() { bytes_ = "\x80\x02"; }
  void integer(int64_t value) {
    bytes_ += "\x8a\x08";  // LONG1 of eight bytes
    raw(value);
  }
  void text(std::string_view value) {
    bytes_ += 'X';
    raw(static_cast<uint32_t>(value.size()));
    bytes_ += value;
  }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += 'e'; }
  void begin_dictionary() { bytes_ += "}("; }
  void end_dictionary() { bytes_ += 'u'; }
  void field(std::string_view key, int64_t value) {
    text(key);
    integer(value);
  }
  void field(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }
  std::string finish() && { return std::move(bytes_ += '.'); }

 private:
  template <class Number>
  void raw(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes_;
};

void add_frames(Pickle& pickle, const Ranges& ranges) {
  pickle.text("frames");
  pickle.begin_list();
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    pickle.begin_dictionary();
    pickle.field("name", *range);
    pickle.field("filename", "titan_train");
    pickle.field("line", 0);
    pickle.end_dictionary();
  }
  pickle.end_list();
}

void add_entry(Pickle& pickle, const Entry& entry, const Ranges& ranges, std::string_view action) {
  pickle.begin_dictionary();
  pickle.field("action", action);
  pickle.field("addr", static_cast<int64_t>(entry.address));
  pickle.field("size", static_cast<int64_t>(entry.bytes));
  pickle.field("stream", 0);
  pickle.field("time_us", entry.time_us);
  add_frames(pickle, ranges);
  pickle.end_dictionary();
}

/// A block of its own segment: the C library's heap is not looked into.
void add_segment(Pickle& pickle, uintptr_t address, const Held& held, const Ranges& ranges) {
  const auto bytes = static_cast<int64_t>(held.bytes);
  const auto place = static_cast<int64_t>(address);
  pickle.begin_dictionary();
  pickle.field("device", 0);
  pickle.field("address", place);
  for (const char* key : {"total_size", "allocated_size", "active_size", "requested_size"}) pickle.field(key, bytes);
  pickle.field("stream", 0);
  pickle.field("segment_type", "large");
  add_frames(pickle, ranges);
  pickle.text("blocks");
  pickle.begin_list();
  pickle.begin_dictionary();
  pickle.field("address", place);
  pickle.field("size", bytes);
  pickle.field("requested_size", bytes);
  pickle.field("state", "active_allocated");
  add_frames(pickle, ranges);
  pickle.end_dictionary();
  pickle.end_list();
  pickle.end_dictionary();
}

}  // namespace

void CpuHistory::begin(size_t most) {
  Notes& all = notes();
  end();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.entries.clear();
    all.most = most;
    all.on = true;
    if (!all.inner) {
      all.inner = c10::GetCPUAllocator();
      static NotingAllocator* const noting = new NotingAllocator;
      c10::SetCPUAllocator(noting, /*priority=*/255);
    }
  }
  all.callback =
      at::addGlobalCallback(at::RecordFunctionCallback(&enter, &leave).scopes({at::RecordScope::USER_SCOPE}));
}

void CpuHistory::end() {
  Notes& all = notes();
  if (all.callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(all.callback);
  all.callback = at::INVALID_CALLBACK_HANDLE;
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.on = false;
}

std::string CpuHistory::pickle() {
  Notes& all = notes();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Pickle pickle;
  pickle.begin_dictionary();
  pickle.text("segments");
  pickle.begin_list();
  for (const auto& [address, held] : all.held) add_segment(pickle, address, held, all.stacks[held.ranges]);
  pickle.end_list();
  pickle.text("device_traces");
  pickle.begin_list();
  pickle.begin_list();
  for (const Entry& entry : all.entries) {
    const Ranges& ranges = all.stacks[entry.ranges];
    // The viewer takes a block for freed at "free_completed", and pairs it with a request before.
    if (entry.is_free) add_entry(pickle, entry, ranges, "free_requested");
    add_entry(pickle, entry, ranges, entry.is_free ? "free_completed" : "alloc");
  }
  pickle.end_list();
  pickle.end_list();
  pickle.text("allocator_settings");
  pickle.begin_dictionary();
  pickle.end_dictionary();
  pickle.end_dictionary();
  return std::move(pickle).finish();
}

}  // namespace titan
