#include "titan/checkpoint/store_meeting.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace titan {
namespace {

/// Rank 0 collects and tells everyone: two keys a rank and meeting, not one for each pair.
class StoreMeeting : public RankMeeting {
 public:
  StoreMeeting(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int64_t rank, int64_t size,
               std::chrono::milliseconds timeout, std::shared_ptr<PeerWaits> waits)
      : store_(c10::make_intrusive<c10d::PrefixStore>(name, std::move(store))),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        waits_(std::move(waits)) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  std::vector<std::string> exchange(std::string message) override {
    const int64_t round = round_++;
    if (rank_ != 0) {
      store_->set(said(round, rank_), bytes_of(message));
      return nlohmann::json::parse(wait_for(heard(round), 0)).get<std::vector<std::string>>();
    }
    std::vector<std::string> all{std::move(message)};
    for (int64_t rank = 1; rank < size_; ++rank) {
      all.push_back(wait_for(said(round, rank), rank));
      store_->deleteKey(said(round, rank));
    }
    store_->set(heard(round), bytes_of(nlohmann::json(all).dump()));
    // Whoever has spoken in this meeting has heard the last one's end.
    if (round > 0) store_->deleteKey(heard(round - 1));
    return all;
  }

 private:
  static std::string said(int64_t round, int64_t rank) { return fmt::format("{}/said/{}", round, rank); }
  static std::string heard(int64_t round) { return fmt::format("{}/heard", round); }
  static std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

  std::string wait_for(const std::string& key, int64_t rank) {
    if (waits_) waits_->begin(rank);
    try {
      store_->wait({key}, timeout_);
      if (waits_) waits_->end(rank);
      const std::vector<uint8_t> bytes = store_->get(key);
      return {bytes.begin(), bytes.end()};
    } catch (const c10::Error& error) {
      if (waits_) waits_->keep();
      throw Error(ExitCode::peer_failure,
                  fmt::format("rank {} did not come to a meeting about checkpoints within {} s: {}", rank,
                              std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(),
                              error.what_without_backtrace()));
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, size_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<PeerWaits> waits_;
  int64_t round_ = 0;
};

}  // namespace

std::unique_ptr<RankMeeting> make_store_meeting(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                int64_t rank, int64_t size, std::chrono::milliseconds timeout,
                                                std::shared_ptr<PeerWaits> waits) {
  return std::make_unique<StoreMeeting>(std::move(store), name, rank, size, timeout, std::move(waits));
}

}  // namespace titan
