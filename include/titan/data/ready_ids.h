// Ids on their way into a vector: few at a time are written with a fixed size, which is much faster than growing a
// vector by one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace titan {

class ReadyIds {
 public:
  explicit ReadyIds(std::vector<int32_t>& ids) : ids_(ids) {}
  ReadyIds(const ReadyIds&) = delete;
  ReadyIds& operator=(const ReadyIds&) = delete;

  static constexpr size_t kRoom = 16;
  /// Where up to kRoom ids may be written.
  int32_t* room() { return &ready_[count_]; }
  /// Takes the first `count` of what was written there.
  void take(size_t count) {
    count_ += count;
    if (count_ + kRoom > ready_.size()) flush();
  }

  /// The vector, with all that was taken; more may be added to it.
  std::vector<int32_t>& flush() {
    ids_.insert(ids_.end(), ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count_));
    count_ = 0;
    return ids_;
  }

 private:
  std::vector<int32_t>& ids_;
  std::array<int32_t, 1024> ready_;
  size_t count_ = 0;
};

}  // namespace titan
