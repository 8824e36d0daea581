#include "titan/checkpoint/store_barrier.h"

#include <algorithm>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "titan/base/json.h"

namespace titan {
namespace {

using Clock = std::chrono::steady_clock;

/// Rank 0 collects the messages and publishes its answer: one key for each other rank and one for the answer.
class StoreBarrier : public RankBarrier {
 public:
  StoreBarrier(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int64_t rank, int64_t size,
               BarrierOptions options)
      : store_(c10::make_intrusive<c10d::PrefixStore>(name, std::move(store))),
        rank_(rank),
        size_(size),
        options_(std::move(options)) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  std::string decide(std::string message, const Decision& decide) override {
    const int64_t round = round_++;
    if (rank_ != 0) {
      store_->set(said(round, rank_), bytes_of(message));
      std::string answer;
      read_words(wait_for(heard(round), 0), 0, [&](const nlohmann::json& said) { answer = said.get<std::string>(); });
      return answer;
    }
    std::vector<std::string> all{std::move(message)};
    for (int64_t rank = 1; rank < size_; ++rank) {
      all.push_back(wait_for(said(round, rank), rank));
      store_->deleteKey(said(round, rank));
    }
    std::string answer = decide(all);
    // A message may contain a file name that is not UTF-8: replace it.
    store_->set(heard(round),
                bytes_of(nlohmann::json(answer).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
    // A rank that sends in this round has read the previous round.
    if (round > 0) store_->deleteKey(heard(round - 1));
    return answer;
  }

 private:
  static std::string said(int64_t round, int64_t rank) { return fmt::format("{}/said/{}", round, rank); }
  static std::string heard(int64_t round) { return fmt::format("{}/heard", round); }
  static std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

  std::string wait_for(const std::string& key, int64_t rank) {
    // Includes the read: the store is in rank 0's process, which may be suspended.
    const BarrierWait noted(options_.waits, rank, options_.response_timeout);
    const Clock::time_point begin = Clock::now();
    try {
      while (!comes_in_time(key, begin)) report_wait(rank, begin);
      const std::vector<uint8_t> bytes = store_->get(key);
      return {bytes.begin(), bytes.end()};
    } catch (const c10::Error& error) {
      if (options_.waits) options_.waits->keep();
      throw Error(ExitCode::peer_failure,
                  fmt::format("rank {} did not reach a checkpoint barrier within {} s: {}", rank,
                              whole_seconds(options_.timeout), error.what_without_backtrace()));
    }
  }

  /// Waits for the response timeout; throws at the timeout and if the store is lost.
  bool comes_in_time(const std::string& key, Clock::time_point begin) {
    const Clock::time_point now = Clock::now();
    constexpr std::chrono::milliseconds kLeast{1};  // LibTorch's store takes zero for no timeout
    const auto left = std::max(kLeast, std::chrono::ceil<std::chrono::milliseconds>(begin + options_.timeout - now));
    const std::chrono::milliseconds slice = std::clamp(options_.response_timeout, kLeast, left);
    try {
      store_->wait({key}, slice);
      return true;
    } catch (const c10::DistStoreError&) {
      // If the store is lost, the same exception comes earlier.
      if (slice == left || Clock::now() - now < slice / 2) throw;
      return false;
    }
  }

  void report_wait(int64_t rank, Clock::time_point begin) {
    const Clock::time_point now = Clock::now();
    // Otherwise the watcher is about to report the rank.
    if (!options_.report || !options_.waits || !options_.waits->were_alive_since(now - options_.response_timeout))
      return;
    options_.report(fmt::format("A checkpoint barrier has waited {} s for rank {}, which responds",
                                whole_seconds(now - begin), rank));
  }

  static int64_t whole_seconds(Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, size_;
  BarrierOptions options_;
  int64_t round_ = 0;
};

class LoneBarrier : public RankBarrier {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::string decide(std::string message, const Decision& decide) override { return decide({std::move(message)}); }
};

}  // namespace

std::string RankBarrier::tell(std::string message) {
  // Of the others, an empty message says that they have arrived.
  if (rank() != 0) message.clear();
  return decide(std::move(message), [](const std::vector<std::string>& messages) { return messages.front(); });
}

std::vector<std::string> RankBarrier::gather(std::string message) {
  std::vector<std::string> all;
  decide(std::move(message), [&](const std::vector<std::string>& messages) {
    all = messages;
    return std::string();
  });
  return all;
}

void read_words(const std::string& words, size_t rank, const std::function<void(const nlohmann::json& said)>& read) {
  const auto broken = [rank](const std::exception& reason) {
    return Error(ExitCode::peer_failure,
                 fmt::format("rank {} sent a checkpoint message that cannot be parsed ({})", rank, reason.what()));
  };
  try {
    read(parse_json(words));
  } catch (const nlohmann::json::exception& reason) {
    throw broken(reason);
  } catch (const std::out_of_range& reason) {
    throw broken(reason);
  } catch (const Error& reason) {
    throw broken(reason);
  }
}

std::unique_ptr<RankBarrier> make_lone_barrier() { return std::make_unique<LoneBarrier>(); }

std::unique_ptr<RankBarrier> make_store_barrier(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, BarrierOptions options) {
  return std::make_unique<StoreBarrier>(std::move(store), name, rank, size, std::move(options));
}

}  // namespace titan
