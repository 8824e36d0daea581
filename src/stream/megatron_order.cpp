#include "titan/stream/megatron_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {

uint32_t NumpyRandom::below_or_at(uint32_t most) {
  if (most == 0) return 0;
  const uint32_t mask = std::numeric_limits<uint32_t>::max() >> std::countl_zero(most);
  uint32_t value = 0;
  do value = static_cast<uint32_t>(bits_()) & mask;
  while (value > most);
  return value;
}

std::array<FilePart, 3> parse_megatron_split(std::string_view shares) {
  constexpr std::string_view kDigits = "0123456789.", kBetween = ", /";
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::bad_config, fmt::format("the split \"{}\" {}", shares, what));
  };
  std::array<double, 3> weights{};
  size_t count = 0;
  for (size_t at = 0; (at = shares.find_first_not_of(kBetween, at)) != shares.npos;) {
    const size_t end = std::min(shares.find_first_of(kBetween, at), shares.size());
    const std::string_view word = shares.substr(at, end - at);
    double weight = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), weight, std::chars_format::fixed);
    const bool is_number = read.ec == std::errc() && read.ptr == word.data() + word.size();
    if (!is_number || word.find_first_not_of(kDigits) != word.npos) refuse(fmt::format("holds \"{}\"", word));
    if (count == weights.size()) refuse("has more than three shares");
    weights[count++] = weight;
    at = end;
  }
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0) || !std::isfinite(sum)) refuse("has no share above zero");
  std::array<FilePart, 3> parts;
  double begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double end = begin + weights[i] / sum;
    if (end > begin) parts[i] = {begin, end};
    begin = end;
  }
  return parts;
}

MegatronOrder::MegatronOrder(std::vector<int32_t> lengths, const MegatronOrderRequest& request)
    : lengths_(std::move(lengths)), request_(request) {
  const auto start = std::chrono::steady_clock::now();
  TITAN_CHECK(request_.sequence_length > 0, request_.sequence_length);
  TITAN_CHECK(!request_.samples || *request_.samples > 0, request_.samples.value_or(0));
  if (request_.part) {
    // Python's round, which takes halves to the even number, as nearbyint does in the usual mode.
    const auto entries = static_cast<double>(lengths_.size());
    const auto edge = [&](double of_one) { return static_cast<int64_t>(std::nearbyint(of_one * entries)); };
    begin_ = edge(request_.part->first);
    end_ = std::min(edge(request_.part->second), std::ssize(lengths_));
  }
  count_epochs();
  check_memory();
  NumpyRandom random(request_.seed);
  fill_entries(random);
  fill_starts();
  fill_samples(random);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void MegatronOrder::count_epochs() {
  const int64_t length = request_.sequence_length;
  for (int64_t i = begin_; i < end_; ++i) tokens_per_epoch_ += lengths_[static_cast<size_t>(i)];
  const std::string holds =
      fmt::format("{} has {} of {} entries with {} ids", request_.subject, with_thousands(end_ - begin_),
                  with_thousands(std::ssize(lengths_)), with_thousands(tokens_per_epoch_));
  if (tokens_per_epoch_ == 0) {
    fail(holds, request_.section == "validation"
                    ? "Give data.megatron_split a larger second share, or name another file in validation.dataset_path"
                    : "Give a larger file, or data.megatron_split a larger first share");
  }
  if (!request_.samples && tokens_per_epoch_ <= length) {
    fail(fmt::format("{}, too few for one sample of {}.seq_len + 1 = {}", holds, request_.section, length + 1),
         fmt::format("Lower {}.seq_len, or give a larger file", request_.section));
  }
  // NumPy draws 64 bits for each number in a shuffle of more than 2³² elements. That is not reproduced here, since no
  // test could compare an order of that size.
  const auto most = static_cast<int64_t>(std::numeric_limits<uint32_t>::max()) - 1;
  const int64_t asked = request_.samples.value_or(0);
  if (request_.samples && asked <= most) epochs_ = (asked * length + tokens_per_epoch_) / tokens_per_epoch_;
  if (asked > most || epochs_ > most / (end_ - begin_) || samples_in(epochs_) > most) {
    fail(fmt::format("{}, and the run reads {} samples: this order is computed up to {} samples, and as many entries "
                     "in all epochs",
                     holds, with_thousands(asked), with_thousands(most)),
         fmt::format("Lower {}.steps, or leave data.order at \"documents\"", request_.section));
  }
  if (epochs_ == 1) return;
  const int64_t of_last = *request_.samples - samples_in(epochs_ - 1);
  separate_ = of_last < static_cast<int64_t>(0.80 * static_cast<double>(samples_in(1)));
}

/// Linux grants more memory than there is, and kills the process that uses it. So this is asked first.
void MegatronOrder::check_memory() const {
  const int64_t entries = (end_ - begin_) * epochs_, samples = samples_in(epochs_);
  const auto width = [](const auto& vector) { return static_cast<int64_t>(sizeof(vector[0])); };
  const int64_t bytes =
      entries * width(entries_) + (entries / kStride + 1) * width(starts_) + samples * width(shuffled_);
  if (!request_.memory || bytes <= *request_.memory) return;
  throw Error(
      ExitCode::out_of_memory,
      fmt::format("data.order = \"megatron\": the order of {} samples and {} entries in {} epoch{} takes {} in each "
                  "process, and this machine has {} left. Lower {}.steps, start fewer processes on a machine, or leave "
                  "data.order at \"documents\".",
                  with_thousands(samples), with_thousands(entries), epochs_, epochs_ == 1 ? "" : "s",
                  human_bytes(static_cast<double>(bytes)), human_bytes(static_cast<double>(*request_.memory)),
                  request_.section));
}

void MegatronOrder::fill_entries(NumpyRandom& random) {
  const int64_t count = end_ - begin_;
  entries_.resize(static_cast<size_t>(count * epochs_));
  for (int64_t epoch = 0; epoch < epochs_; ++epoch) {
    const auto first = entries_.begin() + epoch * count;
    std::iota(first, first + count, static_cast<int32_t>(begin_));
  }
  // All epochs are shuffled as one array, so that they mix, except for a separate last one.
  const auto together = static_cast<size_t>(count * (separate_ ? epochs_ - 1 : epochs_));
  const std::span<int32_t> all(entries_);
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
}

void MegatronOrder::fill_starts() {
  int64_t start = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (i % kStride == 0) starts_.push_back(start);
    start += lengths_[static_cast<size_t>(entries_[i])];
  }
}

void MegatronOrder::fill_samples(NumpyRandom& random) {
  shuffled_.resize(static_cast<size_t>(samples_in(epochs_)));
  std::iota(shuffled_.begin(), shuffled_.end(), 0u);
  const auto together = static_cast<size_t>(samples_in(separate_ ? epochs_ - 1 : epochs_));
  const std::span<uint32_t> all(shuffled_);
  random.shuffle(all.first(together));
  random.shuffle(all.subspan(together));
}

MegatronOrder::Place MegatronOrder::place_of(int64_t index) const {
  TITAN_CHECK(index >= 0 && index < samples(), index, samples());
  const int64_t token = shuffled_[static_cast<size_t>(index)] * request_.sequence_length;
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
  const int64_t kept = after - starts_.begin() - 1;
  Place place{kept * kStride, token - starts_[static_cast<size_t>(kept)]};
  // Skips every entry that ends at or before the token, and with them empty entries.
  for (;; ++place.position) {
    const int64_t length = lengths_[static_cast<size_t>(entries_[static_cast<size_t>(place.position)])];
    if (place.offset < length) return place;
    place.offset -= length;
  }
}

std::string MegatronOrder::description() const {
  return fmt::format("Megatron's samples of {} tokens from entries {} to {}, {} epoch{}{}, seed {}",
                     request_.sequence_length, begin_, end_ - 1, epochs_, epochs_ == 1 ? "" : "s",
                     separate_ ? " with the last one separate" : "", request_.seed);
}

void MegatronOrder::fail(const std::string& what, const std::string& remedy) const {
  throw Error(ExitCode::bad_data, fmt::format("data.order = \"megatron\": {}. {}.", what, remedy));
}

}  // namespace titan
