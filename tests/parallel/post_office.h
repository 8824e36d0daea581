// Messages between threads that play ranks, with the simulator's rule of time: a message leaves when both sides have
// posted it and the one before it in the same direction has arrived, and takes the same time whatever its size.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/communicator.h"

namespace titan {

class PostOffice {
 public:
  using Clock = std::chrono::steady_clock;
  using Direction = std::pair<int64_t, int64_t>;  // from, to
  struct Letter {
    at::Tensor content;
    std::optional<Clock::time_point> arrival;  // once both sides have posted it
  };

  explicit PostOffice(Clock::duration transfer) : transfer_(transfer) {}

  std::shared_ptr<Letter> send(const Direction& direction, const at::Tensor& content) {
    return post(direction, content, /*sends=*/true);
  }
  std::shared_ptr<Letter> receive(const Direction& direction, const at::Tensor& content) {
    return post(direction, content, /*sends=*/false);
  }

  void wait(const Letter& letter) {
    std::unique_lock lock(mutex_);
    matched_.wait(lock, [&] { return letter.arrival.has_value(); });
    const Clock::time_point arrival = *letter.arrival;
    lock.unlock();
    std::this_thread::sleep_until(arrival);
  }
  bool is_matched(const Letter& letter) {
    const std::lock_guard lock(mutex_);
    return letter.arrival.has_value();
  }

 private:
  struct Way {
    std::deque<std::shared_ptr<Letter>> sent, expected;  // one of them is empty
    Clock::time_point free{};
  };

  std::shared_ptr<Letter> post(const Direction& direction, const at::Tensor& content, bool sends) {
    const std::lock_guard lock(mutex_);
    Way& way = ways_[direction];
    auto letter = std::make_shared<Letter>(Letter{content, std::nullopt});
    std::deque<std::shared_ptr<Letter>>& others = sends ? way.expected : way.sent;
    if (others.empty()) {
      (sends ? way.sent : way.expected).push_back(letter);
      return letter;
    }
    const std::shared_ptr<Letter> other = others.front();
    others.pop_front();
    if (sends) {
      other->content.copy_(content);
    } else {
      content.copy_(other->content);
    }
    way.free = std::max(way.free, Clock::now()) + transfer_;
    letter->arrival = other->arrival = way.free;
    matched_.notify_all();
    return letter;
  }

  Clock::duration transfer_;
  std::mutex mutex_;
  std::condition_variable matched_;
  std::map<Direction, Way> ways_;
};

/// One rank's end; transfers are all it can do.
class PostCommunicator : public Communicator {
 public:
  PostCommunicator(std::shared_ptr<PostOffice> office, int64_t rank, int64_t size)
      : Communicator("pp", rank, size), office_(std::move(office)) {}

  std::string_view transport() const override { return "threads"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    auto pending = std::make_unique<Letters>(office_);
    for (const Message& message : sends) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->send({rank(), message.peer}, tensor));
      }
    }
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->receive({message.peer, rank()}, tensor));
        pending->awaited.push_back(pending->letters.back());
      }
    }
    return pending;
  }
  Pending start_all_gather(Tensors, Tensors) override { TITAN_CHECK(false && "a pipeline sends messages only"); }
  Pending start_reduce_scatter(Tensors, Tensors) override { TITAN_CHECK(false && "a pipeline sends messages only"); }
  Pending start_all_reduce(Tensors, Reduction) override { TITAN_CHECK(false && "a pipeline sends messages only"); }

 private:
  struct Letters : PendingCollective {
    explicit Letters(std::shared_ptr<PostOffice> from) : office(std::move(from)) {}
    void wait() override {
      for (const auto& letter : awaited) office->wait(*letter);
    }
    bool inputs_free() override {
      return std::all_of(letters.begin(), letters.end(),
                         [&](const auto& letter) { return office->is_matched(*letter); });
    }
    std::shared_ptr<PostOffice> office;
    std::vector<std::shared_ptr<PostOffice::Letter>> letters, awaited;
  };

  std::shared_ptr<PostOffice> office_;
};

}  // namespace titan
