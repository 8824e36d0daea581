// The GPU of a thread. CUDA takes number 0 for a thread that has chosen none, and the first question that such a thread
// asks makes half a gigabyte of context there, on every rank: so what a thread is started with begins with a choice.
#pragma once

#include <utility>

namespace titan {

/// The number of the GPU that this thread has chosen; 0 where it has chosen none, or there is none.
int chosen_gpu();
/// Has this thread choose it, unless it has.
void choose_gpu(int number);

/// `work` for another thread: there it begins on the GPU that this thread has chosen.
template <class Work>
auto on_own_device(Work work) {
  return [gpu = chosen_gpu(), work = std::move(work)]() mutable {
    choose_gpu(gpu);
    work();
  };
}

}  // namespace titan
