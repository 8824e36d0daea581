// What LibTorch's CPU allocator handed out and took back, entry by entry. Private to report. The allocator is one per
// process, and tensors that it made may outlive everything: so this is the process's too, and is never taken down.
#pragma once

#include <cstddef>
#include <string>

namespace titan {

class CpuHistory {
 public:
  /// Starts anew, with room for `most` entries.
  static void begin(size_t most);
  /// Nothing more is noted; what was stays.
  static void end();
  /// As torch.cuda.memory._snapshot() gives it, pickled: device_traces of one device, each entry with the ranges of
  /// work it lay in, innermost first; and one segment per block that is still held.
  static std::string pickle();
};

}  // namespace titan
