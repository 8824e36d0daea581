// Ends the process with a sentence when memory of a mapped file cannot be read any more. Private to corpus.
#pragma once

#include <cstddef>
#include <string>

namespace titan {

/// While it exists, a SIGBUS at one of these addresses writes a sentence and ends the process with the exit
/// code of bad data: `shrank` if the file is now shorter than the mapping, else `unreadable` (a disk that fails, a
/// network file that is gone). Checks before each document cannot do this: a file may be cut while a scan of gigabytes
/// is in it. Copies by read() could, at the cost of the copy. The handler runs on the thread that reads ids, which is
/// none that computes (see stop_signals.h), and does not return.
class MappingFaults {
 public:
  MappingFaults(const void* begin, size_t size, int descriptor, std::string shrank, std::string unreadable);
  ~MappingFaults();
  MappingFaults(const MappingFaults&) = delete;
  MappingFaults& operator=(const MappingFaults&) = delete;

 private:
  const void* begin_;
};

}  // namespace titan
