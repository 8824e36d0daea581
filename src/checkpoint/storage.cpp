#include "titan/checkpoint/storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {
namespace {

/// Limit of read_all, which reads only metadata: larger files are refused before allocating.
constexpr int64_t kMostReadAtOnce = int64_t{1} << 32;

}  // namespace

StorageError::StorageError(std::string_view what, const std::filesystem::path& path, int reason)
    : Error(ExitCode::storage, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(reason))),
      reason_(reason) {}

void WritableFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const int64_t written = write_some(bytes);
    TITAN_CHECK(written > 0 && written <= static_cast<int64_t>(bytes.size()), written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

std::string Storage::read_all(const std::filesystem::path& file) {
  const std::unique_ptr<ReadableFile> opened = open(file);
  if (opened->size() > kMostReadAtOnce) throw StorageError("read", file, EFBIG);
  std::string bytes(static_cast<size_t>(opened->size()), '\0');
  opened->read(0, bytes);
  return bytes;
}

void Storage::write_all(const std::filesystem::path& file, std::string_view bytes) {
  const std::unique_ptr<WritableFile> created = create(file);
  created->write(bytes);
  created->sync();
}

void Storage::sync_way_to(const std::filesystem::path& folder) {
  // Folders that cannot be opened or synced already exist and belong to another user.
  constexpr std::array kCannotBeNew{EACCES, EPERM, EROFS, EINVAL};
  std::vector<std::filesystem::path> synced;
  for (std::filesystem::path path = folder; path.has_relative_path() && !synced_ways_.contains(path);
       path = path.parent_path()) {
    try {
      sync_folder(path.parent_path());
    } catch (const StorageError& error) {
      if (std::find(kCannotBeNew.begin(), kCannotBeNew.end(), error.reason()) == kCannotBeNew.end()) throw;
    }
    synced.push_back(path);
  }
  synced_ways_.insert(synced.begin(), synced.end());
}

void Storage::remove_folder(const std::filesystem::path& folder) {
  for (const StorageEntry& entry : list(folder)) {
    const std::filesystem::path path = folder / entry.name;
    entry.is_folder && !entry.is_link ? remove_folder(path) : remove(path);
  }
  remove(folder);
}

// The POSIX implementation, for local and network file systems.

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
  /// Starts writeback early instead of all at once in `sync`. A hint: errors are reported by `sync`, and not every file
  /// system supports it.
  void begin_writing_back() {
    // With each write, this would be a system call more for each; at the end, sync would wait for all of the file.
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
  explicit PosixReadableFile(const Path& path) : file_(path, O_RDONLY | O_NONBLOCK, "read") {  // a pipe would block
    struct stat status {};
    if (::fstat(file_.descriptor(), &status) != 0) throw StorageError("read", path, errno);
    if (S_ISDIR(status.st_mode)) throw StorageError("read", path, EISDIR);
    if (!S_ISREG(status.st_mode)) throw StorageError("read, because it is not a plain file,", path, EINVAL);
    size_ = status.st_size;
  }

  int64_t size() const override { return size_; }

  void read(int64_t offset, std::span<char> into) override {
    while (!into.empty()) {
      const ssize_t got = ::pread(file_.descriptor(), into.data(), into.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw StorageError("read", file_.path(), errno);
      if (got == 0) throw StorageError("read", file_.path(), ENODATA);  // the file was cut off after it was opened
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
      std::error_code unknown;  // a dangling link is not a folder
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

namespace {

constexpr size_t kPiece = size_t{1} << 20;  // hashed, then written, while it is in the cache
constexpr size_t kSmall = kPiece / 16;      // smaller writes are collected: each would be a system call
// Who reads a blob goes from its directory at the end to its header and on to its elements: three places, and a block
// that is evicted between them is read and hashed again.
constexpr size_t kCachedBlocks = 3;

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string xxh3_128(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

FileRecord record_of(std::string_view bytes) {
  FileRecord record{static_cast<int64_t>(bytes.size()), {}};
  for (size_t begin = 0; begin < bytes.size(); begin += kHashBlock) {
    record.hashes.push_back(xxh3_128(bytes.substr(begin, kHashBlock)));
  }
  return record;
}

struct HashingWriter::Hash {
  XXH3_state_t state;
};

void HashingWriter::HashDeleter::operator()(Hash* hash) const { delete hash; }

HashingWriter::HashingWriter(Storage& storage, const std::filesystem::path& file)
    : file_(storage.create(file)), hash_(new Hash) {
  XXH3_128bits_reset(&hash_->state);
  buffer_.reserve(kPiece);
}

void HashingWriter::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kPiece || bytes.size() > kSmall) {
    pass_on(buffer_);
    buffer_.clear();
  }
  if (bytes.size() <= kSmall) {
    buffer_ += bytes;
  } else {
    for (size_t begin = 0; begin < bytes.size(); begin += kPiece) pass_on(bytes.substr(begin, kPiece));
  }
  position_ += static_cast<int64_t>(bytes.size());
}

void HashingWriter::pass_on(std::string_view bytes) {
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string_view part = rest.substr(0, static_cast<size_t>(kHashBlock - in_block_));
    XXH3_128bits_update(&hash_->state, part.data(), part.size());
    in_block_ += static_cast<int64_t>(part.size());
    if (in_block_ == kHashBlock) close_block();
    rest.remove_prefix(part.size());
  }
  file_->write(bytes);
}

void HashingWriter::close_block() {
  record_.hashes.push_back(hex(XXH3_128bits_digest(&hash_->state)));
  XXH3_128bits_reset(&hash_->state);
  in_block_ = 0;
}

FileRecord HashingWriter::finish() {
  pass_on(buffer_);
  buffer_.clear();
  if (in_block_ > 0) close_block();
  record_.bytes = position_;
  file_->sync();
  file_.reset();
  return record_;
}

CheckedReader::CheckedReader(Storage& storage, const std::filesystem::path& file, std::optional<FileRecord> record)
    : path_(file), record_(std::move(record)) {
  try {
    file_ = storage.open(file);
  } catch (const StorageError& error) {
    if (error.reason() == ENOENT) throw DamageError(fmt::format("{} is missing", path_.string()));
    throw;
  }
  size_ = file_->size();
  if (!record_) return;
  if (size_ != record_->bytes) {
    throw DamageError(fmt::format("{} has {} bytes instead of {}", path_.string(), size_, record_->bytes));
  }
  checked_.resize(record_->hashes.size());
}

int64_t CheckedReader::block_bytes(int64_t index) const { return std::min(kHashBlock, size_ - index * kHashBlock); }

void CheckedReader::check(int64_t index, std::string_view bytes) {
  if (!record_) return;
  const auto place = static_cast<size_t>(index);
  if (xxh3_128(bytes) != record_->hashes[place]) {
    throw DamageError(fmt::format("the bytes of {} from {} on are not those that were saved (their XXH3-128 differs)",
                                  path_.string(), index * kHashBlock));
  }
  checked_[place] = true;
}

const CheckedReader::Block& CheckedReader::cached(int64_t index) {
  for (const Block& block : cache_) {
    if (block.index == index) return block;
  }
  Block block;
  if (cache_.size() == kCachedBlocks) {
    block = std::move(cache_.back());
    cache_.pop_back();
  }
  block.index = index;
  block.bytes.resize(static_cast<size_t>(block_bytes(index)));
  file_->read(index * kHashBlock, block.bytes);
  check(index, block.bytes);
  cache_.push_front(std::move(block));
  return cache_.front();
}

void CheckedReader::read(int64_t offset, std::span<char> into) {
  const auto count = static_cast<int64_t>(into.size());
  if (offset < 0 || count > size_ || offset > size_ - count) {
    throw DamageError(
        fmt::format("{} has {} bytes, and bytes up to {} are asked for", path_.string(), size_, offset + count));
  }
  while (!into.empty()) {
    const int64_t index = offset / kHashBlock;
    const int64_t inside = offset - index * kHashBlock;
    const auto part = std::min(into.size(), static_cast<size_t>(block_bytes(index) - inside));
    if (!record_ && part > kPiece) {
      file_->read(offset, into.first(part));
    } else if (static_cast<int64_t>(part) == block_bytes(index)) {  // a whole block is checked where it was read to
      file_->read(offset, into.first(part));
      check(index, {into.data(), part});
    } else {
      std::memcpy(into.data(), cached(index).bytes.data() + inside, part);
    }
    offset += static_cast<int64_t>(part);
    into = into.subspan(part);
  }
}

std::string CheckedReader::read(int64_t offset, int64_t count) {
  if (count < 0 || count > size_) throw DamageError(fmt::format("{} is too short", path_.string()));
  if (count > kMostReadAtOnce) {
    throw DamageError(fmt::format("{} has {} bytes where a few are expected", path_.string(), count));
  }
  std::string bytes(static_cast<size_t>(count), '\0');
  read(offset, bytes);
  return bytes;
}

void CheckedReader::check_all() {
  for (size_t index = 0; index < checked_.size(); ++index) {
    if (!checked_[index]) cached(static_cast<int64_t>(index));
  }
}

}  // namespace titan
