// How long this rank computes in the units of a step, without waits for other ranks: what a rank that is slower than
// others shows. On a CPU it is wall time of the host minus the time in collectives; on a GPU the time between two
// events on the stream that computes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <memory>
#include <vector>

#include "titan/distributed/communicator.h"

namespace titan {

class ComputeClock {
 public:
  /// `collectives`: of the thread that computes; null: there are none.
  ComputeClock(const c10::Device& device, std::shared_ptr<const CollectiveTime> collectives);

  /// Around each part of the computation.
  void begin();
  void end();
  /// Seconds of the parts since the last call. On a GPU, of those that the device has finished.
  double take();

 private:
  struct Part {
    c10::Event begin, end;
  };
  double waited() const { return collectives_ ? collectives_->seconds : 0; }

  c10::Device device_;
  std::shared_ptr<const CollectiveTime> collectives_;
  double begun_ = 0, waited_before_ = 0;
  double seconds_ = 0;
  std::vector<Part> parts_;  // on a GPU: not taken yet
};

}  // namespace titan
