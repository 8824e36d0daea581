// Only what LibTorch's ProcessGroupGloo.hpp mentions: LibTorch carries the Gloo library but not its headers. Pointers
// to these types cross the boundary, objects never do; nothing here may be instantiated.
#pragma once

#include <chrono>
#include <memory>

namespace gloo {
namespace transport {
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
class Device;
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
