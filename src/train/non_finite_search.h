// Where a loss or a gradient that is not finite appeared first: the step is computed once more, without changing
// anything, while every unit's results are looked at. Nothing is looked at in normal steps, which this would slow down.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/model/model.h"
#include "titan/stream/chunk_stream.h"

namespace titan {

struct Run;
struct Action;

/// A step whose results may not be known yet.
struct RecentStep {
  int64_t step = 0;
  std::vector<BatchContext> microbatches;
  std::optional<StreamState> begin;  // where its batch begins in the corpus; none: at its beginning
  StreamState end;
};

/// The first result that was not finite on one rank.
struct NonFinitePlace {
  int64_t microbatch = 0;
  bool backward = false;
  int64_t unit = 0;  // in the model's chain
  std::string name;
  bool operator==(const NonFinitePlace&) const = default;
};
/// True if `a` is computed before `b` in a step.
bool is_earlier(const NonFinitePlace& a, const NonFinitePlace& b);

/// Which ranks computed it first.
struct FirstNonFinite {
  NonFinitePlace place;
  std::vector<int64_t> ranks;
};
/// Of what each rank found; none: everything was finite there.
std::optional<FirstNonFinite> first_of(std::span<const std::optional<NonFinitePlace>> ranks);

class NonFiniteSearch {
 public:
  /// `run` must outlive it.
  explicit NonFiniteSearch(Run& run) : run_(run) {}

  /// Keeps the batch of a step until its results are known.
  void remember(RecentStep step);
  /// Collective. `own_loss_is_finite`: of this rank's tokens. The end of a sentence about `step`.
  std::string explain(int64_t step, bool own_loss_is_finite);

 private:
  std::optional<NonFinitePlace> search(const RecentStep& recent);
  /// Rank 0: the end of the sentence, of what all ranks have found.
  std::string words_about(const RecentStep& recent, const std::vector<std::string>& said) const;
  std::string batch_words(const RecentStep& recent) const;
  /// The sequences of a rank's microbatch.
  std::string sequence_words(const RecentStep& recent, int64_t rank, int64_t microbatch) const;

  Run& run_;
  std::deque<RecentStep> recent_;
};

}  // namespace titan
