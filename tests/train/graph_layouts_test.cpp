// What is recorded and replayed, blocks or whole microbatches, gives what eager work gives, bit for bit, wherever
// graphs are used. No GPU is needed: a recorder that runs the recorded code again stands in for CUDA's.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comparison.h"

namespace titan {
namespace {

constexpr int64_t kSteps = 6;  // two eager ones, one that is recorded, three replayed

std::vector<LayoutRow> rows_with_graphs() {
  std::vector<LayoutRow> rows;
  for (LayoutRow row : layout_rows()) {
    if (row.tensor > 1 || row.world() > 4) continue;
    row.graphs = true;
    rows.push_back(row);
  }
  return rows;
}

class GraphLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(GraphLayouts, AreBitForBitWhatEagerStepsGive) {
  LayoutRow eager_row = GetParam();
  eager_row.graphs = false;
  const std::vector<RankResult> eager = train_ranks(eager_row, kSteps);
  const std::vector<RankResult> replayed = train_ranks(GetParam(), kSteps);
  for (size_t rank = 0; rank < eager.size(); ++rank) {
    EXPECT_EQ(replayed[rank].losses, eager[rank].losses);
    EXPECT_EQ(replayed[rank].norms, eager[rank].norms);
    for (const auto& [name, weight] : eager[rank].weights) {
      EXPECT_TRUE(same_bits(replayed[rank].weights.at(name), weight)) << name;
    }
    EXPECT_EQ(traffic_difference(replayed[rank]), "") << "communication stands between the graphs";
    // First and later microbatches are recorded apart: they write gradients, or add to them.
    // A rank that is alone records whole microbatches, the others their blocks, each direction for itself.
    const bool alone = GetParam().world() == 1 && !GetParam().offload;
    const int64_t graphs = alone ? 1 : 2 * GetParam().sizes.n_layers;
    const int64_t kinds = GetParam().accumulation > 1 ? 2 : 1;
    EXPECT_EQ(replayed[rank].replays.prepared, kinds);
    EXPECT_EQ(replayed[rank].replays.recorded, graphs * kinds);
    const int64_t later_passes = kSteps * (GetParam().accumulation - 1);
    const int64_t passes = kSteps - 2 + std::max<int64_t>(0, later_passes - 2);
    EXPECT_EQ(replayed[rank].replays.runs, graphs * passes);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, GraphLayouts, ::testing::ValuesIn(rows_with_graphs()),
                         [](const auto& info) { return info.param.name(); });

/// How often each named range of a trace is entered while it lives, whatever the thread.
class RangeCounts {
 public:
  RangeCounts() {
    counts().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
          const std::lock_guard lock(mutex());
          ++counts()[range.name()];
          return nullptr;
        }).scopes({at::RecordScope::USER_SCOPE}));
  }
  ~RangeCounts() { at::removeCallback(handle_); }
  RangeCounts(const RangeCounts&) = delete;
  RangeCounts& operator=(const RangeCounts&) = delete;

  int64_t of(const std::string& name) const {
    const std::lock_guard lock(mutex());
    return counts()[name];
  }

 private:
  // A callback of LibTorch's is a plain function.
  static std::map<std::string, int64_t>& counts() {
    static std::map<std::string, int64_t> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  at::CallbackHandle handle_;
};

TEST(GraphRanges, AMicrobatchThatIsOneGraphIsOneRangeOfATrace) {
  LayoutRow row;  // a rank that is alone
  row.accumulation = 2;
  for (const bool graphs : {false, true}) {
    row.graphs = graphs;
    const RangeCounts ranges;
    train_ranks(row, kSteps);
    EXPECT_EQ(ranges.of("microbatch"), graphs ? kSteps * row.accumulation : 0) << "else the units' own ranges show it";
    EXPECT_GT(ranges.of("forward layers.0"), 0);
  }
}

}  // namespace
}  // namespace titan
