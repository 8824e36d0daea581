// A weighted interleaving of chunk streams (see chunk_stream.h).
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "titan/base/error.h"
#include "titan/stream/chunk_stream.h"

namespace titan {

std::vector<int64_t> integer_weights(const std::vector<double>& weights) {
  constexpr double kParts = 1e6;  // fractions count in millionths, which is how far their sum may be from 1
  const bool whole = std::all_of(weights.begin(), weights.end(), [](double w) { return w == std::floor(w); });
  std::vector<int64_t> integers;
  for (const double weight : weights) {
    if (!(weight > 0) || weight > kParts) {
      throw Error(ExitCode::bad_config, fmt::format("weight {} must be above 0 and at most 1,000,000", weight));
    }
    integers.push_back(std::llround(whole ? weight : weight * kParts));
  }
  const int64_t sum = std::accumulate(integers.begin(), integers.end(), int64_t{0});
  if (!whole && sum != std::llround(kParts)) {
    throw Error(ExitCode::bad_config, fmt::format("the weights sum to {} and not to 1 (whole numbers, such as 3 and 1, "
                                                  "need not)",
                                                  static_cast<double>(sum) / kParts));
  }
  if (std::find(integers.begin(), integers.end(), 0) != integers.end()) {
    throw Error(ExitCode::bad_config, "a weight is below a millionth");
  }
  int64_t divisor = 0;
  for (const int64_t weight : integers) divisor = std::gcd(divisor, weight);
  for (int64_t& weight : integers) weight /= divisor;
  return integers;
}

size_t next_in_mixture(const std::vector<int64_t>& weights, const std::vector<int64_t>& given) {
  const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  const int64_t total = std::accumulate(given.begin(), given.end(), int64_t{0}) + 1;
  size_t best = weights.size();
  __int128 best_deadline = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const __int128 weight = weights[i], have = given[i];
    // The quota method forbids a stream to exceed its share, rounded up.
    if (have * sum >= total * weight) continue;
    // By this total its share, rounded down, exceeds its count, so it must have been chosen: the earliest goes first.
    const __int128 deadline = ((have + 1) * sum + weight - 1) / weight;
    if (best == weights.size() || deadline < best_deadline) {
      best = i;
      best_deadline = deadline;
    }
  }
  TITAN_CHECK(best < weights.size(), total);
  return best;
}

ChunkMixture::ChunkMixture(std::vector<std::unique_ptr<ChunkSource>> streams, std::vector<int64_t> weights)
    : streams_(std::move(streams)), weights_(std::move(weights)), given_(streams_.size(), 0) {
  TITAN_CHECK(streams_.size() == weights_.size() && !streams_.empty(), streams_.size(), weights_.size());
}

bool ChunkMixture::next(Chunk& chunk) {
  const size_t stream = next_in_mixture(weights_, given_);
  current_ = stream;
  const bool found = streams_[stream]->next(chunk);
  given_[stream] += found;
  take_counters();
  return found;
}

void ChunkMixture::take_counters() {
  counters_ = {};
  for (const auto& stream : streams_) counters_ += stream->counters();
}

StreamState ChunkMixture::state() const {
  StreamState state;
  state.chunk = std::accumulate(given_.begin(), given_.end(), int64_t{0});
  for (size_t i = 0; i < streams_.size(); ++i) {
    state.sources.push_back(streams_[i]->state());
    state.fingerprint = state.fingerprint * 31 + state.sources.back().fingerprint + static_cast<uint64_t>(weights_[i]);
  }
  return state;
}

void ChunkMixture::restore(const StreamState& state) {
  if (state.sources.empty() && state.chunk > 0) {
    throw Error(ExitCode::bad_data,
                "the saved position belongs to a single corpus, and this run reads a mixture. Give the same data as "
                "before, or restart the data with checkpoint.exclude_from_loading = [\"dataloader\"].");
  }
  if (!state.sources.empty() && state.sources.size() != streams_.size()) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("the saved position belongs to a mixture of {} sources, and this run's has {}. Give the same "
                    "ones in the same order, or restart the data with checkpoint.exclude_from_loading = "
                    "[\"dataloader\"].",
                    state.sources.size(), streams_.size()));
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    const StreamState one = state.sources.empty() ? StreamState() : state.sources[i];
    streams_[i]->restore(one);
    given_[i] = one.chunk;
  }
  take_counters();
}

std::vector<std::string> ChunkMixture::take_notices() {
  std::vector<std::string> all;
  for (const auto& stream : streams_) {
    for (std::string& text : stream->take_notices()) all.push_back(std::move(text));
  }
  return all;
}

std::string ChunkMixture::reading() const { return streams_[current_.load()]->reading(); }

}  // namespace titan
