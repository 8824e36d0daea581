#include "titan/report/run_history.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "titan/base/error.h"
#include "titan/report/step_report.h"

namespace titan {
namespace {

std::string a_line(int64_t step, double loss) {
  return fmt::format(R"({{"step":{},"loss":{},"lr":0.001,"tps":100.5,"tokens_seen":{}}})", step, loss, step * 64);
}

std::vector<std::string> texts(const RunHistory& history) {
  std::vector<std::string> all;
  for (const LoggedEvent& event : history.events()) all.push_back(fmt::format("{}: {}", event.step, event.text));
  return all;
}

TEST(RunHistory, TakesCurvesAndTheNewestNumbersFromLines) {
  RunHistory history;
  EXPECT_TRUE(history.empty());
  EXPECT_TRUE(history.add_line(a_line(1, 7)));
  EXPECT_TRUE(history.add_line(R"({"step":1,"validation_loss":6.5})"));
  EXPECT_TRUE(history.add_line(a_line(2, 6)));
  EXPECT_EQ(history.last_step(), 2);
  EXPECT_EQ(history.series("loss").buckets().size(), 2u);
  EXPECT_EQ(history.series("validation_loss").buckets().at(0).mean(), 6.5);
  EXPECT_EQ(history.newest("tokens_seen"), 128);
  EXPECT_EQ(history.newest("mfu_percent"), std::nullopt);
  EXPECT_TRUE(history.series("mfu_percent").empty());
  EXPECT_TRUE(history.events().empty());
}

TEST(RunHistory, StatisticsOfTheModelAreCurvesByNameAndElementAndBoundedInNumber) {
  RunHistory history;
  history.add_line(R"({"step":1,"loss":7,"statistics":{"balance":0.5,"load":[1,"nan"]}})");
  history.add_line(R"({"step":2,"loss":7,"statistics":{"balance":0.25,"load":[3,4]}})");
  EXPECT_EQ(history.statistics(),
            (std::vector<std::string>{"statistics.balance", "statistics.load[0]", "statistics.load[1]"}));
  EXPECT_EQ(history.newest("statistics.balance"), 0.25);
  EXPECT_EQ(history.series("statistics.load[0]").buckets().size(), 2u);
  EXPECT_EQ(history.series("statistics.load[1]").buckets().size(), 1u);
  EXPECT_EQ(texts(history), std::vector<std::string>{"1: statistics.load[1] is not finite"});
  nlohmann::json many{{"step", 3}, {"loss", 7}, {"statistics", {{"more", std::vector<double>(100, 1.0)}}}};
  history.add(many);
  EXPECT_EQ(history.statistics().size(), RunHistory::kMostStatistics);
}

TEST(RunHistory, WhatIsNoLineIsPassedOver) {
  RunHistory history;
  for (const char* line : {"", "{", "[1]", "3", R"({"step":"1","loss":2})", R"({"step":-4,"loss":2})", R"({"loss":2})",
                           R"({"step":1,"lo)"}) {
    EXPECT_FALSE(history.add_line(std::string_view(line))) << line;
  }
  EXPECT_TRUE(history.add_line(std::string_view(R"({"step":1,"loss":[],"lr":{}})"))) << "odd values are none";
  EXPECT_TRUE(history.series("loss").empty());
  EXPECT_EQ(history.unread_lines(), 8);
}

TEST(RunHistory, ARunThatGoesOnFromACheckpointCountsOnce) {
  RunHistory history;
  for (int64_t step = 1; step <= 9; ++step) history.add_line(a_line(step, 5));
  for (int64_t step = 7; step <= 12; ++step) history.add_line(a_line(step, 4));
  EXPECT_EQ(history.series("loss").buckets().size(), 12u);
  EXPECT_EQ(history.series("loss").buckets()[6].mean(), 4);
  history.add_line(a_line(12, 3));
  EXPECT_EQ(history.series("loss").buckets().size(), 12u);
  EXPECT_EQ(history.series("loss").buckets()[11].mean(), 3);
  EXPECT_EQ(texts(history), (std::vector<std::string>{"7: resumed from step 6", "12: resumed from step 11"}));
}

TEST(RunHistory, RestartsStayWhenTheRunGoesBackBehindThem) {
  RunHistory history;
  const auto restart = [&](int64_t step) {
    history.add_line(fmt::format(R"({{"step":{},"event":"restart","why":"rank 1 failed","lost_steps":3,)"
                                 R"("lost_seconds":4.5,"down_seconds":61}})",
                                 step));
  };
  for (int64_t step = 1; step <= 9; ++step) history.add_line(a_line(step, 5));
  for (int64_t step = 7; step <= 8; ++step) history.add_line(a_line(step, 5));
  restart(7);
  history.add_line(a_line(1, 5));
  restart(1);
  history.add_line(R"({"step":1,"event":"restart","why":[],"lost_steps":"many"})");
  EXPECT_EQ(history.newest("restarts"), 3);
  EXPECT_EQ(texts(history),
            (std::vector<std::string>{
                "7: restarted from step 6: rank 1 failed; lost 3 steps and 4.5s of training, down for 1m01s",
                "1: restarted from step 1",
                "1: restarted from step 0: rank 1 failed; lost 3 steps and 4.5s of training, down for 1m01s",
                "1: restarted from step 0: ; lost 0 steps and 0.0s of training, down for 0.0s"}));
}

TEST(RunHistory, SpikesAndValuesThatAreNotFiniteAreEvents) {
  RunHistory history;
  history.add_line(std::string_view(
      R"({"step":3,"event":"spike","loss_deviations":7.25,"grad_norm_deviations":-0.5,"skipped":true})"));
  history.add_line(std::string_view(R"({"step":3,"loss":"nan","grad_norm":"inf"})"));
  EXPECT_EQ(texts(history), (std::vector<std::string>{"3: spike: loss +7.2σ, gradient norm -0.5σ, step skipped",
                                                      "3: loss is not finite", "3: gradient norm is not finite"}));
  EXPECT_TRUE(std::isnan(history.newest("loss").value()));
}

TEST(RunHistory, ASlowRankIsAnEvent) {
  RunHistory history;
  history.add_line(
      json_line(StragglerReport{.step = 24, .rank = 3, .ratio = 1.312, .ranks = 8, .steps = 20, .host = "node7"}));
  EXPECT_EQ(texts(history),
            (std::vector<std::string>{"24: rank 3 on node7 is slow: 1.31 times the median's compute time"}));
}

TEST(RunHistory, StepsInARowThatAreNotFiniteAreOneEvent) {
  RunHistory history;
  for (const int64_t step : {1, 2, 3, 4, 6, 7}) {
    history.add(nlohmann::json{{"step", step}, {"loss", "nan"}, {"grad_norm", "nan"}});
    if (step == 4) history.add(nlohmann::json{{"step", 5}, {"loss", 2.0}});
  }
  EXPECT_EQ(texts(history), (std::vector<std::string>{"1: loss is not finite, up to step 4",
                                                      "1: gradient norm is not finite, up to step 7",
                                                      "6: loss is not finite, up to step 7"}));
}

TEST(RunHistory, ARunThatWentBackWasNotFiniteUpToThereAlone) {
  const auto line = [](int64_t step, const char* loss) { return nlohmann::json{{"step", step}, {"loss", loss}}; };
  RunHistory history;
  for (int64_t step = 1; step <= 9; ++step) history.add(line(step, step >= 3 ? "nan" : "inf"));
  history.add(nlohmann::json{{"step", 6}, {"loss", 2.0}});
  EXPECT_EQ(texts(history),
            (std::vector<std::string>{"1: loss is not finite, up to step 5", "6: resumed from step 5"}));
  // Steps that are done again after a resume are an event of their own, or continue the one before them.
  for (const int64_t step : {7, 8, 9}) history.add(line(step, "nan"));
  history.add(line(9, "nan"));
  history.add(line(10, "nan"));
  EXPECT_EQ(texts(history),
            (std::vector<std::string>{"1: loss is not finite, up to step 5", "6: resumed from step 5",
                                      "7: loss is not finite, up to step 10", "9: resumed from step 8"}));
}

class HistoryFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("titan-history-" + std::to_string(::getpid()) + ".jsonl");
};

TEST_F(HistoryFile, OfALongRunIsReadInPartAndWhatIsRareInFull) {
  {
    std::ofstream file(path_);
    for (int64_t step = 1; step <= 20'000; ++step) {
      file << a_line(step, 5) << '\n';
      if (step % 5000 == 0) file << R"({"step":)" << step << R"(,"validation_loss":4})" << '\n';
    }
  }
  const auto size = std::filesystem::file_size(path_);
  const RunHistory history = read_history(path_, {}, size / 10);
  int64_t values = 0;
  for (const Series::Bucket& bucket : history.series("loss").buckets()) values += bucket.count;
  EXPECT_NEAR(static_cast<double>(values), 2000, 200);
  EXPECT_EQ(history.series("validation_loss").buckets().size(), 4u);
}

TEST_F(HistoryFile, BeforeAStepHoldsNothingOfLaterOnes) {
  {
    std::ofstream file(path_);
    for (int64_t step = 1; step <= 10; ++step) file << a_line(step, 5) << '\n';
    file << R"({"step": 11, "lo)";
  }
  EXPECT_EQ(read_history(path_, 7).last_step(), 6);
  EXPECT_EQ(read_history(path_).last_step(), 10);
}

TEST_F(HistoryFile, BeforeAStepHoldsAllRestarts) {
  std::ofstream(path_) << a_line(1, 5) << '\n' << R"({"step":9,"event":"restart","why":"rank 1 failed"})" << '\n';
  EXPECT_EQ(read_history(path_, 2).newest("restarts"), 1);
  EXPECT_EQ(read_history(path_, 2).last_step(), 1);
}

TEST_F(HistoryFile, ThatIsNotThereIsNamed) {
  try {
    read_history(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find(path_.string() + ": No such file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
