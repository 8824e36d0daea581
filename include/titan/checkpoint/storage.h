// Where checkpoints lie, as the few calls that saving, loading and deleting need. Everything goes through this
// interface, so that tests can fail each call, or stop the world after it and drop what was not synced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/base/error.h"

namespace titan {

/// A storage call failed (exit code 73): "cannot WHAT PATH: reason". `reason` is the system's error number.
class StorageError : public Error {
 public:
  StorageError(std::string_view what, const std::filesystem::path& path, int reason);
  int reason() const { return reason_; }

 private:
  int reason_;
};

struct StorageEntry {
  std::string name;
  bool is_folder = false;  // or a link to one
  bool is_link = false;
};

/// A file being written from its beginning. Not synced until `sync` has returned; closed by the destructor.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends all of `bytes`, over as many partial writes as it takes.
  void write(std::string_view bytes);
  /// The bytes written so far are on the medium.
  virtual void sync() = 0;

 protected:
  /// Appends the first n > 0 bytes of `bytes`, n as many as the medium takes at once; returns n.
  virtual int64_t write_some(std::string_view bytes) = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual int64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on; an error when the file ends before.
  virtual void read(int64_t offset, std::span<char> into) = 0;
};

/// Every call throws StorageError when it fails. Calls come from any thread, but those about one file from one thread
/// at a time.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Makes the folder and those above it; one that is there is fine. New names above it are on the medium.
  virtual void make_folders(const std::filesystem::path& folder) = 0;
  /// A new file; one of that name must not be there.
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path& file) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::filesystem::path& file) = 0;
  /// Sorted by name; empty when there is no such folder.
  virtual std::vector<StorageEntry> list(const std::filesystem::path& folder) = 0;
  /// Gives a file or a folder another name in the same parent folder, at once: nobody sees both names or none.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// A file, or an empty folder.
  virtual void remove(const std::filesystem::path& path) = 0;
  /// The names in the folder are on the medium.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
  /// Bytes that can still be written where `folder` lies.
  virtual int64_t free_bytes(const std::filesystem::path& folder) = 0;

  /// The whole of a small file.
  std::string read_all(const std::filesystem::path& file);
  /// A whole new file, synced.
  void write_all(const std::filesystem::path& file, std::string_view bytes);
  /// The names of `folder` and of the folders that it is in are on the medium: whoever made them may not have seen to
  /// it. Done once for each of them; from one thread at a time.
  void sync_way_to(const std::filesystem::path& folder);
  /// The folder and what is in it; links are deleted, not followed. A folder that is not there is fine.
  void remove_folder(const std::filesystem::path& folder);

 protected:
  std::set<std::filesystem::path> synced_ways_;  // whose names are on the medium
};

/// Files of this machine.
std::unique_ptr<Storage> make_posix_storage();

}  // namespace titan
