#include "memory_storage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

namespace titan {

using Path = std::filesystem::path;

/// A change of a folder that is not on the medium yet: names that disappear and names that appear, together.
struct FolderChange {
  std::vector<std::string> gone;
  std::map<std::string, std::shared_ptr<MemoryStorage::Inode>> come;
};

struct MemoryStorage::Inode {
  bool is_folder = false;
  // A file: what is seen, what is on the medium, and where the writes since the last sync begin.
  std::string bytes, safe_bytes;
  std::vector<size_t> pending_writes;
  // A folder, likewise.
  std::map<std::string, std::shared_ptr<Inode>> entries, safe_entries;
  std::vector<FolderChange> pending_changes;

  void apply(FolderChange change) {
    change_entries(entries, change);
    pending_changes.push_back(std::move(change));
  }

  static void change_entries(std::map<std::string, std::shared_ptr<Inode>>& to, const FolderChange& change) {
    for (const std::string& name : change.gone) to.erase(name);
    for (const auto& [name, inode] : change.come) to[name] = inode;
  }

  void sync() {
    safe_bytes = bytes;
    pending_writes.clear();
    safe_entries = entries;
    pending_changes.clear();
  }

  /// Becomes what is left of it after a crash; `keep` decides about each change.
  void lose(const std::function<bool()>& keep) {
    // A write that is lost leaves zeros where later ones survive, and a shorter file where none does.
    std::string left = safe_bytes;
    for (size_t i = 0; i < pending_writes.size(); ++i) {
      if (!keep()) continue;
      const size_t begin = pending_writes[i];
      const size_t end = i + 1 < pending_writes.size() ? pending_writes[i + 1] : bytes.size();
      if (left.size() < end) left.resize(end, '\0');
      std::memcpy(left.data() + begin, bytes.data() + begin, end - begin);
    }
    bytes = left;
    for (const FolderChange& change : pending_changes) {
      if (keep()) change_entries(safe_entries, change);
    }
    entries = safe_entries;
    sync();
    for (const auto& [name, inode] : entries) inode->lose(keep);
  }

  std::shared_ptr<Inode> copy() const {
    auto twin = std::make_shared<Inode>();
    twin->is_folder = is_folder;
    twin->bytes = bytes;
    for (const auto& [name, inode] : entries) twin->entries[name] = inode->copy();
    twin->sync();
    return twin;
  }
};

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(MemoryStorage& storage, Path path, std::shared_ptr<MemoryStorage::Inode> inode)
      : storage_(storage), path_(std::move(path)), inode_(std::move(inode)) {}

  void sync() override {
    storage_.enter("sync " + path_.string());
    const std::lock_guard lock(storage_.mutex_);
    inode_->sync();
    storage_.leave();
  }

 protected:
  int64_t write_some(std::string_view bytes) override {
    storage_.enter("write " + path_.string());
    const std::lock_guard lock(storage_.mutex_);
    auto size = static_cast<int64_t>(bytes.size());
    if (storage_.write_limit_) size = std::min(size, *storage_.write_limit_);
    if (storage_.capacity_) {
      size = std::min(size, *storage_.capacity_);
      *storage_.capacity_ -= size;
      if (size == 0) throw StorageError("write", path_, ENOSPC);
    }
    inode_->pending_writes.push_back(inode_->bytes.size());
    inode_->bytes += bytes.substr(0, static_cast<size_t>(size));
    storage_.leave();
    return size;
  }

 private:
  MemoryStorage& storage_;
  Path path_;
  std::shared_ptr<MemoryStorage::Inode> inode_;
};

class MemoryReadableFile : public ReadableFile {
 public:
  MemoryReadableFile(MemoryStorage& storage, Path path, std::shared_ptr<MemoryStorage::Inode> inode)
      : storage_(storage), path_(std::move(path)), inode_(std::move(inode)) {}

  int64_t size() const override { return static_cast<int64_t>(inode_->bytes.size()); }

  void read(int64_t offset, std::span<char> into) override {
    storage_.enter("read " + path_.string());
    const std::lock_guard lock(storage_.mutex_);
    if (offset < 0 || offset + static_cast<int64_t>(into.size()) > size()) throw StorageError("read", path_, ENODATA);
    if (!into.empty()) std::memcpy(into.data(), inode_->bytes.data() + offset, into.size());
    storage_.leave();
  }

 private:
  MemoryStorage& storage_;
  Path path_;
  std::shared_ptr<MemoryStorage::Inode> inode_;
};

MemoryStorage::MemoryStorage() : root_(std::make_shared<Inode>()) { root_->is_folder = true; }

void MemoryStorage::fail_at(int64_t call, int reason, int64_t times) {
  fail_from_ = calls_ + call;
  fail_until_ = fail_from_ + times;
  fail_reason_ = reason;
}

void MemoryStorage::enter(std::string what) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw MachineStopped{};
    ++calls_;
    journal_.push_back(what);
    if (calls_ >= fail_from_ && calls_ < fail_until_) throw StorageError(what, "there", fail_reason_);
  }
  if (const int reason = refusal_ ? refusal_(what) : 0) throw StorageError(what, "there", reason);
}

void MemoryStorage::leave() {
  if (!stop_at_ || calls_ < *stop_at_) return;
  stopped_ = true;
  throw MachineStopped{};
}

std::shared_ptr<MemoryStorage::Inode> MemoryStorage::find(const Path& path) const {
  std::shared_ptr<Inode> inode = root_;
  for (const Path& name : path) {
    if (name == "/") continue;
    const auto entry = inode->entries.find(name.string());
    if (entry == inode->entries.end()) return nullptr;
    inode = entry->second;
  }
  return inode;
}

std::shared_ptr<MemoryStorage::Inode> MemoryStorage::folder_of(const Path& path, std::string_view what) const {
  std::shared_ptr<Inode> folder = find(path.parent_path());
  if (!folder || !folder->is_folder) throw StorageError(what, path, ENOENT);
  return folder;
}

void MemoryStorage::make_folders(const Path& folder) {
  enter("make " + folder.string());
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Inode> inode = root_;
  for (const Path& name : folder) {
    if (name == "/") continue;
    std::shared_ptr<Inode>& entry = inode->entries[name.string()];
    if (!entry) {
      auto made = std::make_shared<Inode>();
      made->is_folder = true;
      inode->apply({{}, {{name.string(), made}}});
    } else if (!entry->is_folder) {
      throw StorageError("make the folder", folder, ENOTDIR);
    }
    inode = inode->entries[name.string()];
  }
  leave();
}

std::unique_ptr<WritableFile> MemoryStorage::create(const Path& file) {
  enter("create " + file.string());
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Inode> folder = folder_of(file, "write");
  const std::string name = file.filename().string();
  if (folder->entries.contains(name)) throw StorageError("write", file, EEXIST);
  auto inode = std::make_shared<Inode>();
  folder->apply({{}, {{name, inode}}});
  leave();
  return std::make_unique<MemoryWritableFile>(*this, file, std::move(inode));
}

std::unique_ptr<ReadableFile> MemoryStorage::open(const Path& file) {
  enter("open " + file.string());
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Inode> inode = find(file);
  if (!inode) throw StorageError("read", file, ENOENT);
  if (inode->is_folder) throw StorageError("read", file, EISDIR);
  leave();
  return std::make_unique<MemoryReadableFile>(*this, file, std::move(inode));
}

std::vector<StorageEntry> MemoryStorage::list(const Path& folder) {
  enter("list " + folder.string());
  const std::lock_guard lock(mutex_);
  std::vector<StorageEntry> entries;
  if (const std::shared_ptr<Inode> inode = find(folder)) {
    for (const auto& [name, entry] : inode->entries) entries.push_back({name, entry->is_folder, false});
  }
  leave();
  return entries;
}

void MemoryStorage::rename(const Path& from, const Path& to) {
  enter("rename " + from.string());
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Inode> inode = find(from);
  if (!inode) throw StorageError("rename", from, ENOENT);
  TITAN_CHECK(from.parent_path() == to.parent_path());
  const std::shared_ptr<Inode> folder = folder_of(to, "rename");
  const auto there = folder->entries.find(to.filename().string());
  if (there != folder->entries.end() && !there->second->entries.empty()) throw StorageError("rename", from, ENOTEMPTY);
  folder->apply({{from.filename().string()}, {{to.filename().string(), inode}}});
  leave();
}

void MemoryStorage::remove(const Path& path) {
  enter("remove " + path.string());
  const std::lock_guard lock(mutex_);
  if (const std::shared_ptr<Inode> inode = find(path)) {
    if (!inode->entries.empty()) throw StorageError("delete", path, ENOTEMPTY);
    folder_of(path, "delete")->apply({{path.filename().string()}, {}});
  }
  leave();
}

void MemoryStorage::sync_folder(const Path& folder) {
  enter("sync " + folder.string());
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Inode> inode = find(folder);
  if (!inode) throw StorageError("sync", folder, ENOENT);
  inode->sync();
  leave();
}

int64_t MemoryStorage::free_bytes(const Path& folder) {
  enter("space " + folder.string());
  const std::lock_guard lock(mutex_);
  leave();
  return promised_space_ ? *promised_space_ : capacity_.value_or(int64_t{1} << 40);
}

void MemoryStorage::restart(Surviving surviving) {
  std::mt19937_64 generator(surviving.seed);
  root_->lose([&] {
    if (surviving.kind == Surviving::Kind::half) return (generator() >> 32 & 1) != 0;
    return surviving.kind == Surviving::Kind::all;
  });
  stopped_ = false;
  stop_at_.reset();
  synced_ways_.clear();  // another process
}

std::map<std::string, std::string> MemoryStorage::files() const {
  std::map<std::string, std::string> found;
  std::function<void(const Path&, const Inode&)> walk = [&](const Path& path, const Inode& inode) {
    if (!inode.is_folder) found[path.string()] = inode.bytes;
    for (const auto& [name, entry] : inode.entries) walk(path / name, *entry);
  };
  walk("", *root_);
  return found;
}

void MemoryStorage::damage(const Path& file, const std::function<void(std::string&)>& change) {
  const std::shared_ptr<Inode> inode = find(file);
  TITAN_CHECK(inode != nullptr, file.string());
  change(inode->bytes);
  inode->sync();
}

std::unique_ptr<MemoryStorage> MemoryStorage::copy() const {
  auto twin = std::make_unique<MemoryStorage>();
  twin->root_ = root_->copy();
  return twin;
}

}  // namespace titan
