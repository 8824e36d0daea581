#include "titan/base/replace_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "titan/base/error.h"

namespace titan {

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  std::FILE* const file = std::fopen(temporary.c_str(), "wbe");
  bool good = file != nullptr;
  if (good) {
    good = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    const int reason = errno;
    const bool closed = std::fclose(file) == 0;
    if (!good) errno = reason;
    good = good && closed && std::rename(temporary.c_str(), path.c_str()) == 0;
  }
  if (good) return;
  const int reason = errno;
  if (file) ::unlink(temporary.c_str());
  throw Error(ExitCode::storage, fmt::format("cannot write {}: {}", path.string(), std::strerror(reason)));
}

}  // namespace titan
