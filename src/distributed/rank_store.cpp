#include "rank_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "channel.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using CallKind = StoreCall::Kind;
using ByteVector = std::vector<uint8_t>;

/// The limit of a wait for which c10d gives 0, which means none there. Here every wait ends, so that no process
/// outlives its job for ever.
constexpr std::chrono::hours kLongestWait{24};
/// Maximum size of a call's keys and values together: a line holds two hexadecimal digits for each byte.
constexpr size_t kMostBytes = kMembersLine / 2 - (size_t{1} << 20);

bool changes(CallKind kind) { return kind == CallKind::set || kind == CallKind::add || kind == CallKind::compare_set; }

/// The value of a counter; 0 if the key holds no number.
int64_t number_of(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

std::string text_of(const ByteVector& bytes) { return {bytes.begin(), bytes.end()}; }

class RankStore : public c10d::Store {
 public:
  explicit RankStore(AskStore ask) : ask_(std::move(ask)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto same = c10::make_intrusive<RankStore>(ask_);
    same->timeout_ = timeout_;
    return same;
  }
  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const ByteVector& value) override {
    ask({.kind = CallKind::set, .keys = {key}, .values = {text_of(value)}});
  }
  ByteVector compareSet(const std::string& key, const ByteVector& expected, const ByteVector& desired) override {
    return bytes_of(
        ask({.kind = CallKind::compare_set, .keys = {key}, .values = {text_of(expected), text_of(desired)}}));
  }
  ByteVector get(const std::string& key) override { return bytes_of(ask({.kind = CallKind::get, .keys = {key}})); }
  int64_t add(const std::string& key, int64_t value) override {
    return ask({.kind = CallKind::add, .keys = {key}, .values = {}, .number = value}).number;
  }
  bool deleteKey(const std::string& key) override { return ask({.kind = CallKind::erase, .keys = {key}}).number != 0; }
  bool check(const std::vector<std::string>& keys) override {
    return ask({.kind = CallKind::check, .keys = keys}).number != 0;
  }
  int64_t getNumKeys() override { return ask({.kind = CallKind::count}).number; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    ask({.kind = CallKind::wait, .keys = keys, .values = {}, .number = 0, .within = timeout});
  }

 private:
  /// Checked by the sender, since the receiver closes the connection on a line that is too long.
  static void check_length(const StoreCall& call) {
    size_t bytes = 0;
    for (const auto* texts : {&call.keys, &call.values}) {
      for (const std::string& text : *texts) bytes += text.size();
    }
    if (bytes <= kMostBytes) return;
    throw Error(ExitCode::launcher, fmt::format("{} bytes for {} are more than the {} that ranks can send each other "
                                                "through the run's store",
                                                bytes, call.keys.at(0), kMostBytes));
  }
  static ByteVector bytes_of(const StoreAnswer& answer) { return {answer.value.begin(), answer.value.end()}; }

  StoreAnswer ask(StoreCall call) {
    check_length(call);
    if (call.kind != CallKind::wait) call.within = timeout_;
    if (call.within.count() <= 0) call.within = kLongestWait;
    std::optional<StoreAnswer> answer = ask_(call);
    if (answer) return *std::move(answer);
    C10_THROW_ERROR(DistStoreError, fmt::format("the run's store did not answer within {} ms about {}",
                                                call.within.count(), join(call.keys, ", ")));
  }

  AskStore ask_;
};

}  // namespace

std::optional<StoreAnswer> StoreTable::try_answer(const StoreCall& call) {
  StoreAnswer answer{.value = {}, .number = 0, .id = call.id};
  const auto has = [this](const std::string& key) { return values_.contains(key); };
  const bool all = std::all_of(call.keys.begin(), call.keys.end(), has);
  const std::string key = call.keys.empty() ? "" : call.keys[0];
  switch (call.kind) {
    case CallKind::set:
      values_[key] = call.values.at(0);
      break;
    case CallKind::get:
    case CallKind::wait:
      if (!all) return std::nullopt;
      if (call.kind == CallKind::get) answer.value = values_[key];
      break;
    case CallKind::add:
      answer.number =
          static_cast<int64_t>(static_cast<uint64_t>(number_of(values_[key])) + static_cast<uint64_t>(call.number));
      values_[key] = std::to_string(answer.number);
      break;
    case CallKind::check:
      answer.number = all ? 1 : 0;
      break;
    case CallKind::erase:
      answer.number = static_cast<int64_t>(values_.erase(key));
      break;
    case CallKind::count:
      answer.number = std::ssize(values_);
      break;
    case CallKind::compare_set: {
      // Same semantics as c10d's stores: a missing key is set if nothing was expected, else the expected value is
      // returned.
      const bool is_there = has(key);
      if (is_there ? values_[key] == call.values.at(0) : call.values.at(0).empty()) values_[key] = call.values.at(1);
      answer.value = has(key) ? values_[key] : call.values.at(0);
      break;
    }
  }
  return answer;
}

std::optional<StoreAnswer> StoreTable::answer(const StoreCall& call) {
  std::optional<StoreAnswer> answer = try_answer(call);
  if (!changes(call.kind)) return answer;
  changed_.notify_all();
  const auto kept = kept_.find(call.keys.at(0));
  if (kept == kept_.end()) return answer;
  for (auto& [caller, calls] : kept->second) {
    for (WaitingCall& waiting : calls) ready_.push_back(std::move(waiting));
  }
  kept_.erase(kept);
  if (on_ready_) on_ready_();
  return answer;
}

std::string StoreTable::missing_key(const StoreCall& call) const {
  const auto is_missing = [this](const std::string& key) { return !values_.contains(key); };
  return *std::find_if(call.keys.begin(), call.keys.end(), is_missing);
}

std::optional<StoreAnswer> StoreTable::answer_or_keep(const WaitingCall& waiting) {
  const std::lock_guard lock(mutex_);
  std::optional<StoreAnswer> found = answer(waiting.call);
  if (found) return found;
  std::vector<WaitingCall>& calls = kept_[missing_key(waiting.call)][waiting.caller];
  // A caller that waits in slices asks again and again: its overdue calls must not pile up.
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(calls, [&](const WaitingCall& kept) { return kept.until <= now; });
  calls.push_back(waiting);
  return std::nullopt;
}

std::vector<WaitingCall> StoreTable::take_ready() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ready_, {});
}

std::optional<StoreAnswer> StoreTable::wait_answer(const StoreCall& call) {
  std::unique_lock lock(mutex_);
  std::optional<StoreAnswer> found = answer(call);
  if (!found) changed_.wait_for(lock, call.within, [&] { return (found = try_answer(call)).has_value(); });
  return found;
}

void StoreTable::on_ready(std::function<void()> ready) {
  const std::lock_guard lock(mutex_);
  on_ready_ = std::move(ready);
}

c10::intrusive_ptr<c10d::Store> make_rank_store(AskStore ask) { return c10::make_intrusive<RankStore>(std::move(ask)); }

}  // namespace titan
