// Storage on the file systems of this machine, network ones included.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "titan/checkpoint/storage.h"

namespace titan {
namespace {

using Path = std::filesystem::path;

/// A file descriptor with the name it was opened under, for messages.
class OpenFile {
 public:
  OpenFile(Path path, int flags, std::string_view what) : path_(std::move(path)) {
    do {
      descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) throw StorageError(what, path_, errno);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  const Path& path() const { return path_; }

 private:
  Path path_;
  int descriptor_ = -1;
};

class PosixWritableFile : public WritableFile {
 public:
  explicit PosixWritableFile(const Path& path) : file_(path, O_WRONLY | O_CREAT | O_EXCL, "write") {}

  void sync() override {
    if (::fdatasync(file_.descriptor()) != 0) throw StorageError("write", file_.path(), errno);
  }

 protected:
  int64_t write_some(std::string_view bytes) override {
    for (;;) {
      const ssize_t written = ::write(file_.descriptor(), bytes.data(), bytes.size());
      if (written > 0) {
        written_ += written;
        begin_writing_back();
        return written;
      }
      if (written == 0) throw StorageError("write", file_.path(), ENOSPC);
      if (errno != EINTR) throw StorageError("write", file_.path(), errno);
    }
  }

 private:
  /// The medium begins with what it has, rather than with all of it when `sync` is called. A hint: errors come back
  /// from `sync`, and not every file system knows it.
  void begin_writing_back() {
    constexpr int64_t kStretch = int64_t{8} << 20;
    if (written_ - handed_over_ < kStretch) return;
    ::sync_file_range(file_.descriptor(), handed_over_, written_ - handed_over_, SYNC_FILE_RANGE_WRITE);
    handed_over_ = written_;
  }

  OpenFile file_;
  int64_t written_ = 0, handed_over_ = 0;
};

class PosixReadableFile : public ReadableFile {
 public:
  explicit PosixReadableFile(const Path& path) : file_(path, O_RDONLY | O_NONBLOCK, "read") {  // a pipe would wait
    struct stat status {};
    if (::fstat(file_.descriptor(), &status) != 0) throw StorageError("read", path, errno);
    if (S_ISDIR(status.st_mode)) throw StorageError("read", path, EISDIR);
    if (!S_ISREG(status.st_mode)) throw StorageError("read, because it is no plain file,", path, EINVAL);
    size_ = status.st_size;
  }

  int64_t size() const override { return size_; }

  void read(int64_t offset, std::span<char> into) override {
    while (!into.empty()) {
      const ssize_t got = ::pread(file_.descriptor(), into.data(), into.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw StorageError("read", file_.path(), errno);
      if (got == 0) throw StorageError("read", file_.path(), ENODATA);  // shorter than it was a moment ago
      offset += got;
      into = into.subspan(static_cast<size_t>(got));
    }
  }

 private:
  OpenFile file_;
  int64_t size_ = 0;
};

class PosixStorage : public Storage {
 public:
  void make_folders(const Path& folder) override {
    std::error_code reason;
    std::vector<Path> missing;
    for (Path path = folder; !path.empty() && !std::filesystem::exists(path, reason); path = path.parent_path()) {
      missing.push_back(path);
    }
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
      if (::mkdir(path->c_str(), 0755) != 0 && errno != EEXIST) throw StorageError("make the folder", *path, errno);
      if (*path != folder) sync_folder(path->parent_path());
    }
    if (!std::filesystem::is_directory(folder, reason)) throw StorageError("make the folder", folder, ENOTDIR);
  }

  std::unique_ptr<WritableFile> create(const Path& file) override { return std::make_unique<PosixWritableFile>(file); }
  std::unique_ptr<ReadableFile> open(const Path& file) override { return std::make_unique<PosixReadableFile>(file); }

  std::vector<StorageEntry> list(const Path& folder) override {
    std::vector<StorageEntry> entries;
    std::error_code reason;
    for (std::filesystem::directory_iterator entry(folder, reason), end; !reason && entry != end;
         entry.increment(reason)) {
      std::error_code unknown;  // a link that leads nowhere is no folder
      entries.push_back({entry->path().filename().string(), entry->is_directory(unknown), entry->is_symlink(unknown)});
    }
    if (reason && reason != std::errc::no_such_file_or_directory) {
      throw StorageError("list", folder, reason.value());
    }
    std::sort(entries.begin(), entries.end(),
              [](const StorageEntry& a, const StorageEntry& b) { return a.name < b.name; });
    return entries;
  }

  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) throw StorageError("rename to " + to.string(), from, errno);
  }

  void remove(const Path& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) throw StorageError("delete", path, errno);
  }

  void sync_folder(const Path& folder) override {
    const OpenFile opened(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY, "sync");
    if (::fsync(opened.descriptor()) != 0) throw StorageError("sync", folder, errno);
  }

  int64_t free_bytes(const Path& folder) override {
    struct statvfs status {};
    if (::statvfs(folder.c_str(), &status) != 0) throw StorageError("ask the free space of", folder, errno);
    return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  }
};

}  // namespace

std::unique_ptr<Storage> make_posix_storage() { return std::make_unique<PosixStorage>(); }

}  // namespace titan
