#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "titan/base/error.h"

#define XXH_INLINE_ALL
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/process.h"
#include "titan/base/text.h"

namespace titan {
namespace {

[[noreturn]] void fail_to_write(const std::filesystem::path& path, int reason) {
  throw Error(ExitCode::storage,
              fmt::format("cannot write {}: {}. See to the disk and give the same command again: it resumes where "
                          "it stopped.",
                          path.string(), std::strerror(reason)));
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, int64_t keep) : path_(path) {
  const std::string obstacle = own_file_obstacle(path);
  if (!obstacle.empty()) throw Error(ExitCode::storage, fmt::format("cannot write {}: {}", path.string(), obstacle));
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (descriptor_ < 0) fail_to_write(path, errno);
  if (::ftruncate(descriptor_, keep) != 0 || ::lseek(descriptor_, keep, SEEK_SET) < 0) {
    const int reason = errno;
    ::close(descriptor_);
    fail_to_write(path, reason);
  }
}

OutputFile::~OutputFile() { ::close(descriptor_); }

void OutputFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(descriptor_, next, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_to_write(path_, errno);
    next += done;
    size -= static_cast<size_t>(done);
  }
}

void OutputFile::sync() {
  if (::fdatasync(descriptor_) != 0) fail_to_write(path_, errno);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to_write(to, errno);
  const std::filesystem::path folder = to.has_parent_path() ? to.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_to_write(folder, errno);
  const int result = ::fsync(descriptor);
  ::close(descriptor);
  if (result != 0) fail_to_write(folder, errno);
}

namespace fs = std::filesystem;

namespace {

/// The value after a round trip through text. File names need not be valid UTF-8.
nlohmann::json written(const nlohmann::json& words) {
  return parse_json(words.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

GrowingFile::GrowingFile(fs::path bin, const nlohmann::json& identity, const nlohmann::json& sizes)
    : bin_(std::move(bin)), identity_(written(identity)), sizes_(written(sizes)) {}

TokenizeProgress GrowingFile::open(bool overwrite, int64_t token_bytes) {
  if (fs::is_directory(bin_)) refuse("this is a folder", "Name a file with --output");
  hold();
  if (fs::exists(index_path(bin_)) && !overwrite) {
    refuse("it is already there", "Name another --output, or say --overwrite");
  }
  if (overwrite) remove_all();
  // If the process was killed during finish(), the file has its final name but no index.
  if (fs::exists(bin_) && fs::exists(part(".progress"))) rename_durably(bin_, part(".part"));
  if (fs::exists(bin_)) refuse("a file without an index is there", "Remove it, or say --overwrite");
  const std::optional<TokenizeProgress> found = read_progress(token_bytes);
  const TokenizeProgress progress = found.value_or(TokenizeProgress());
  const int64_t written = progress.tokens * token_bytes;
  const int64_t whole = written / kTokenBlock * kTokenBlock;
  if (written > whole) {
    FileReader reader(part(".part"));
    reader.skip(whole);
    block_.resize(static_cast<size_t>(written - whole));
    reader.read(block_.data(), block_.size());
  }
  ids_ = std::make_unique<OutputFile>(part(".part"), written);
  ends_ = std::make_unique<OutputFile>(part(".ends.part"), progress.documents * int64_t{8});
  hashes_ = std::make_unique<OutputFile>(part(".hashes.part"), whole / kTokenBlock * 8);
  return progress;
}

/// Two processes that write to the same files would produce ids that contradict the index. The lock file is hidden, so
/// that a folder of .bin files still reads as a corpus, and is never removed (see LockFile).
void GrowingFile::hold() {
  const fs::path path = bin_.parent_path() / fmt::format(".{}.lock", bin_.filename().string());
  lock_.emplace(path, fmt::format("process {} on {}", ::getpid(), host_name()));
  if (lock_->state() == LockFile::State::taken) {
    refuse(fmt::format("another titan_train is writing it: {}", lock_->detail()),
           "Wait for that one, or name another --output");
  }
  if (lock_->state() == LockFile::State::unlockable) {
    warning_ = fmt::format("{} cannot be locked ({}); make sure that no other command writes {}", path.string(),
                           lock_->detail(), bin_.string());
  }
}

void GrowingFile::write_ids(std::string_view bytes) {
  ids_->write(bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const size_t fits = std::min(bytes.size(), static_cast<size_t>(kTokenBlock) - block_.size());
    block_.append(bytes.substr(0, fits));
    bytes.remove_prefix(fits);
    if (std::ssize(block_) == kTokenBlock) write_hash();
  }
}

void GrowingFile::write_end(int64_t tokens) {
  const auto end = static_cast<uint64_t>(tokens);
  ends_->write(&end, sizeof end);
}

void GrowingFile::save(const TokenizeProgress& progress) {
  ids_->sync();
  ends_->sync();
  hashes_->sync();
  nlohmann::json note = identity_;
  note["files"] = sizes_;
  note["tokens"] = progress.tokens;
  note["documents"] = progress.documents;
  note["bad_records"] = progress.bad_records;
  note["invalid_utf8"] = progress.invalid_utf8;
  note["text_bytes"] = progress.text_bytes;
  note["next"] = {progress.next.document, progress.next.file, progress.next.byte, progress.next.line};
  write_file_atomically(part(".progress"), json_text(note));
}

void GrowingFile::finish(const TokenizeProgress& progress, TokenFileFacts facts) {
  if (!block_.empty()) write_hash();
  save(progress);
  ids_.reset();
  facts.documents = progress.documents;
  facts.tokens = progress.tokens;
  const std::string raw = read_file(part(".hashes.part"));
  std::vector<uint64_t> hashes(raw.size() / sizeof(uint64_t));
  std::memcpy(hashes.data(), raw.data(), hashes.size() * sizeof(uint64_t));
  rename_durably(part(".part"), bin_);
  write_token_index(bin_, facts, hashes, part(".ends.part"));
  for (const char* rest : {".progress", ".ends.part", ".hashes.part"}) fs::remove(part(rest));
}

void GrowingFile::refuse(const std::string& what, const std::string& remedy) const {
  throw Error(ExitCode::bad_config, fmt::format("output {}: {}. {}.", bin_.string(), what, remedy));
}

void GrowingFile::remove_all() {
  fs::remove(index_path(bin_));  // first: without it the rest is invalid
  for (const char* rest : {"", ".part", ".progress", ".ends.part", ".hashes.part"}) fs::remove(part(rest));
}

void GrowingFile::write_hash() {
  const uint64_t hash = XXH3_64bits(block_.data(), block_.size());
  hashes_->write(&hash, sizeof hash);
  block_.clear();
}

void GrowingFile::check_identity(const nlohmann::json& note) const {
  for (const auto& [key, value] : identity_.items()) {
    if (note.is_object() && note.contains(key) && note.at(key) == value) continue;
    if (const std::string change = key == "corpus or text field" ? changed_file(note) : ""; !change.empty()) {
      refuse(fmt::format("{} was begun before the corpus changed: {}", part(".part").filename().string(), change),
             "Restore the corpus to continue, or pass --overwrite to start again with the changed one");
    }
    refuse(fmt::format("{} was begun with another {}", part(".part").filename().string(), key),
           "Repeat the command that began it, or pass --overwrite to start again");
  }
}

std::optional<TokenizeProgress> GrowingFile::read_progress(int64_t token_bytes) const {
  if (!fs::exists(part(".progress"))) return std::nullopt;
  const nlohmann::json note = parse_json(read_file(part(".progress")), /*allow_exceptions=*/false);
  // Nothing was written yet: the earlier options may have been wrong, so they need not match.
  if (note.is_object() && note.contains("tokens") && note.at("tokens") == 0) return std::nullopt;
  check_identity(note);
  TokenizeProgress progress;
  progress.tokens = note.at("tokens");
  progress.documents = note.at("documents");
  progress.bad_records = note.at("bad_records");
  progress.invalid_utf8 = note.at("invalid_utf8");
  progress.text_bytes = note.at("text_bytes");
  const nlohmann::json& next = note.at("next");
  progress.next = {next.at(0), next.at(1), next.at(2), next.at(3)};
  std::error_code ignored;
  const auto has = [&](const char* what, int64_t bytes) {
    return fs::exists(part(what), ignored) && static_cast<int64_t>(fs::file_size(part(what), ignored)) >= bytes;
  };
  const int64_t bytes = progress.tokens * token_bytes;
  const bool whole = has(".part", bytes) && has(".ends.part", progress.documents * int64_t{8}) &&
                     has(".hashes.part", bytes / kTokenBlock * 8);
  return whole ? std::optional(progress) : std::nullopt;
}

/// Describes the first file that differs from the recorded progress.
std::string GrowingFile::changed_file(const nlohmann::json& note) const {
  if (!note.is_object() || !note.contains("files")) return {};
  const nlohmann::json& before = note.at("files");
  for (const auto& [file, bytes] : sizes_.items()) {
    if (!before.contains(file)) return fmt::format("{} is new", file);
    const int64_t had = before.at(file), has = bytes;
    if (had != has) {
      return fmt::format("{} had {} bytes and now has {}", file, with_thousands(had), with_thousands(has));
    }
  }
  for (const auto& [file, bytes] : before.items()) {
    if (!sizes_.contains(file)) return fmt::format("{} is gone", file);
  }
  return {};
}

}  // namespace titan
