// Messages between threads that play ranks, with the simulator's rule of time: a message leaves when both sides have
// posted it and the one before it in the same direction has arrived, and takes the same time whatever its size. Time is
// virtual: each rank has a clock of its own, which its work and the messages it waits for advance.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/distributed/communicator.h"

namespace titan {

class PostOffice {
 public:
  using Direction = std::pair<int64_t, int64_t>;  // from, to
  struct Letter {
    at::Tensor content;
    double posted;                  // by the side that was first
    std::optional<double> arrival;  // once both sides have posted it
  };

  explicit PostOffice(double transfer) : transfer_(transfer) {}

  std::shared_ptr<Letter> send(const Direction& direction, const at::Tensor& content, double now) {
    return post(direction, content, now, /*sends=*/true);
  }
  std::shared_ptr<Letter> receive(const Direction& direction, const at::Tensor& content, double now) {
    return post(direction, content, now, /*sends=*/false);
  }

  /// → when the letter arrives.
  double wait(const Letter& letter) {
    std::unique_lock lock(mutex_);
    matched_.wait(lock, [&] { return letter.arrival.has_value(); });
    return *letter.arrival;
  }
  bool is_matched(const Letter& letter) {
    const std::lock_guard lock(mutex_);
    return letter.arrival.has_value();
  }

 private:
  struct Way {
    std::deque<std::shared_ptr<Letter>> sent, expected;  // one of them is empty
    double free = 0;
  };

  std::shared_ptr<Letter> post(const Direction& direction, const at::Tensor& content, double now, bool sends) {
    const std::lock_guard lock(mutex_);
    Way& way = ways_[direction];
    auto letter = std::make_shared<Letter>(Letter{content, now, std::nullopt});
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
    way.free = std::max({way.free, now, other->posted}) + transfer_;
    letter->arrival = other->arrival = way.free;
    matched_.notify_all();
    return letter;
  }

  double transfer_;
  std::mutex mutex_;
  std::condition_variable matched_;
  std::map<Direction, Way> ways_;
};

/// One rank's end; transfers are all it can do. `now` is the rank's clock.
class PostCommunicator : public Communicator {
 public:
  PostCommunicator(std::shared_ptr<PostOffice> office, std::shared_ptr<double> now, int64_t rank, int64_t size)
      : Communicator("pp", rank, size), office_(std::move(office)), now_(std::move(now)) {}

  std::string_view transport() const override { return "threads"; }
  void set_timeout(std::chrono::milliseconds) override {}

 protected:
  Pending start_transfer(std::vector<Message> receives, std::vector<Message> sends) override {
    auto pending = std::make_unique<Letters>(office_, now_);
    for (const Message& message : sends) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->send({rank(), message.peer}, tensor, *now_));
      }
    }
    for (const Message& message : receives) {
      for (const at::Tensor& tensor : message.tensors) {
        pending->letters.push_back(office_->receive({message.peer, rank()}, tensor, *now_));
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
    Letters(std::shared_ptr<PostOffice> from, std::shared_ptr<double> clock)
        : office(std::move(from)), now(std::move(clock)) {}
    void wait() override {
      for (const auto& letter : awaited) *now = std::max(*now, office->wait(*letter));
    }
    bool inputs_free() override {
      return std::all_of(letters.begin(), letters.end(),
                         [&](const auto& letter) { return office->is_matched(*letter); });
    }
    std::shared_ptr<PostOffice> office;
    std::shared_ptr<double> now;
    std::vector<std::shared_ptr<PostOffice::Letter>> letters, awaited;
  };

  std::shared_ptr<PostOffice> office_;
  std::shared_ptr<double> now_;
};

}  // namespace titan
