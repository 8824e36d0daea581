#include "mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "file_reader.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr const char* kLeaveAlone = "Leave the corpus alone while a run reads it; put the file back and start again";

std::string sentence_of(const std::filesystem::path& path, const std::string& what, const std::string& remedy) {
  return fmt::format("token file {}: {}. {}.", path.string(), what, remedy);
}

/// As the program prints its last error.
std::string last_line(const std::string& sentence) { return "titan_train: " + printable_lines(sentence) + "\n"; }

}  // namespace

void fail_ids(const std::filesystem::path& path, const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::bad_data, sentence_of(path, what, remedy));
}

void fail_changed(const std::filesystem::path& path, const std::string& what) { fail_ids(path, what, kLeaveAlone); }

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Opening a pipe without a writer would block for ever.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_reading(path, fmt::format("{}. Check the file.", std::strerror(errno)));
  const struct stat facts = facts_now();
  if (!S_ISREG(facts.st_mode)) {
    ::close(descriptor_);
    fail_reading(path, "this is not a file but a pipe, a device or a folder. Name a file.");
  }
  size_ = static_cast<size_t>(facts.st_size);
  changed_ = facts.st_mtim;
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    const int reason = errno;
    ::close(descriptor_);
    fail_reading(path, fmt::format("it cannot be mapped into memory: {}.", std::strerror(reason)));
  }
  const std::string shrank =
      fmt::format("the file shrank while it was read: it had {} bytes", with_thousands(static_cast<int64_t>(size_)));
  faults_.emplace(data_, size_, descriptor_, last_line(sentence_of(path, shrank, kLeaveAlone)),
                  last_line(sentence_of(path, "its disk or the connection to it failed while it was read",
                                        "See whether the file can be read, and start again")));
}

MappedFile::~MappedFile() {
  faults_.reset();
  if (data_) ::munmap(data_, size_);
  ::close(descriptor_);
}

bool MappedFile::is_unchanged() const {
  const struct stat facts = facts_now();
  return static_cast<size_t>(facts.st_size) == size_ && facts.st_mtim.tv_sec == changed_.tv_sec &&
         facts.st_mtim.tv_nsec == changed_.tv_nsec;
}

struct stat MappedFile::facts_now() const {
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) facts = {};
  return facts;
}

void ChangeWatch::check(const std::filesystem::path& path, const MappedFile& ids, const MappedFile* index) {
  const Clock::time_point now = Clock::now();
  if (now - seen_ < kCheckHolds) return;
  if (ids.size_now() < ids.size()) {
    fail_changed(path, fmt::format("the file shrank while it was read: it had {} bytes and now has {}",
                                   with_thousands(static_cast<int64_t>(ids.size())),
                                   with_thousands(static_cast<int64_t>(ids.size_now()))));
  }
  if (!ids.is_unchanged() || (index && !index->is_unchanged())) {
    fail_changed(path, fmt::format("{} was written to while it was read: its size or its time of change is another one",
                                   ids.is_unchanged() ? "its index" : "the file"));
  }
  seen_ = now;
}

}  // namespace titan
