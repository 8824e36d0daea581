// What a program asked of the mock GPU, counted. Written as JSON when the program ends, so that a test reads what a run
// did on the device: kernels by name, products by shape, copies, waits of the host, memory, collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace mock_cuda {

class Ledger {
 public:
  /// The process's own. The environment says where it is written: MOCK_CUDA_LEDGER, a folder; nothing is written
  /// without it.
  static Ledger& of_process();

  /// One more of `what` in the list `kind` ("kernels", "products", "waits", …), of `amount` bytes or operations.
  void add(const char* kind, const std::string& what, int64_t amount = 0);
  /// The largest value that was ever named so.
  void peak(const char* what, int64_t value);
  /// A thing that a real GPU refuses, or that the mock does not know: the test looks at these first.
  void trouble(const std::string& what);
  void write();

 private:
  struct Count {
    int64_t times = 0;
    int64_t amount = 0;
  };
  std::mutex mutex_;
  std::map<std::string, std::map<std::string, Count>> counts_;
  std::map<std::string, int64_t> peaks_;
  std::map<std::string, int64_t> troubles_;
};

/// The host waits for the device in `call`. With MOCK_CUDA_TRACE set, where from is written to stderr, and so is where
/// copies of at least that many bytes come from.
void note_wait(const char* call);
size_t traced_bytes();
void trace(const char* what);

}  // namespace mock_cuda
