#include "side_by_side.h"

#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace titan {

void side_by_side(size_t count, const std::function<void(size_t)>& act) {
  std::vector<std::exception_ptr> failures(count);
  const auto attempt = [&](size_t i) {
    try {
      act(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  std::vector<size_t> here{0};
  threads.reserve(count);
  for (size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back(attempt, i);
    } catch (const std::system_error&) {
      here.push_back(i);
    }
  }
  for (const size_t i : here) {
    if (i < count) attempt(i);
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace titan
