// Storage in memory that fails as it is told to and forgets what was not synced, as a machine does that loses power.
// Each inode has what readers see and what is on the medium; a crash makes the second the first, with all, none or a
// seeded half of what came after the last sync. Several threads may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/storage.h"

namespace titan {

/// Thrown by the call after which the machine stops, and by every later one until `restart`.
struct MachineStopped {};

/// What of the changes since the last sync is still there after a crash.
struct Surviving {
  enum class Kind { all, none, half };
  Kind kind = Kind::all;
  uint64_t seed = 0;  // half: which one
};

class MemoryStorage : public Storage {
 public:
  MemoryStorage();

  void make_folders(const std::filesystem::path& folder) override;
  std::unique_ptr<WritableFile> create(const std::filesystem::path& file) override;
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& file) override;
  std::vector<StorageEntry> list(const std::filesystem::path& folder) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& folder) override;
  int64_t free_bytes(const std::filesystem::path& folder) override;

  /// Calls so far, those of files included.
  int64_t calls() const { return calls_; }
  /// What was called, in order: "write step-1/x".
  const std::vector<std::string>& journal() const { return journal_; }

  /// The machine stops after call number `call` (1 is the next one).
  void stop_after(int64_t call) { stop_at_ = calls_ + call; }
  /// Call number `call` (1 is the next one) and the `times` − 1 that follow fail with `reason`.
  void fail_at(int64_t call, int reason, int64_t times = 1);
  /// Writes take at most this many bytes at once.
  void limit_writes(int64_t bytes) { write_limit_ = bytes; }
  /// Bytes that may still be written; a write that reaches the limit is cut short, the next one fails.
  void set_capacity(int64_t bytes) { capacity_ = bytes; }
  /// What `free_bytes` says whatever the capacity is: somebody else fills the disk after it has been asked.
  void promise_space(int64_t bytes) { promised_space_ = bytes; }
  /// Asked before each call with what it is; a number other than 0 is the reason with which it fails.
  void set_refusal(std::function<int(const std::string&)> refusal) { refusal_ = std::move(refusal); }

  /// Drops what does not survive and goes on.
  void restart(Surviving surviving);

  /// Everything that can be read, by path.
  std::map<std::string, std::string> files() const;
  /// Changes a file behind everyone's back.
  void damage(const std::filesystem::path& file, const std::function<void(std::string&)>& change);
  /// The same content, no faults, nothing unsynced.
  std::unique_ptr<MemoryStorage> copy() const;

  struct Inode;

 private:
  friend class MemoryWritableFile;
  friend class MemoryReadableFile;

  void enter(std::string what);
  void leave();
  std::shared_ptr<Inode> find(const std::filesystem::path& path) const;
  std::shared_ptr<Inode> folder_of(const std::filesystem::path& path, std::string_view what) const;

  std::mutex mutex_;  // not held while a refusal is asked, which may wait for another call
  std::shared_ptr<Inode> root_;
  int64_t calls_ = 0;
  std::vector<std::string> journal_;
  std::optional<int64_t> stop_at_;
  bool stopped_ = false;
  int64_t fail_from_ = 0, fail_until_ = 0;
  int fail_reason_ = 0;
  std::optional<int64_t> write_limit_, capacity_, promised_space_;
  std::function<int(const std::string&)> refusal_;
};

}  // namespace titan
