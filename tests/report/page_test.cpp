#include "titan/report/page.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace titan {
namespace {

RunHistory a_history(int64_t steps, double scale = 1) {
  RunHistory history;
  for (int64_t step = 1; step <= steps; ++step) {
    const double loss = scale * (3 + 5 * std::exp(-0.01 * static_cast<double>(step)));
    history.add(nlohmann::json{{"step", step},
                               {"loss", loss},
                               {"grad_norm", 1.0},
                               {"lr", 1e-3},
                               {"tps", 1000.0},
                               {"memory_peak_bytes", 1 << 30},
                               {"step_seconds", 0.1},
                               {"data_wait_seconds", 0.001}});
  }
  return history;
}

RunView a_run(const RunHistory& history, const std::string& name = "run") {
  return {name, {{"description", "a run"}, {"steps", 1000}, {"model", "llama3 <small>"}}, &history};
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Page, NeedsNothingFromElsewhere) {
  const RunHistory history = a_history(50);
  const std::string page = render_page({a_run(history)});
  for (const char* outside : {"http:", "https:", "//", "src=", "href=", "@import", "url("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
}

TEST(Page, ShowsEveryCurveThatHasValuesAndNoOther) {
  const RunHistory history = a_history(50);
  const std::string page = render_page({a_run(history)});
  EXPECT_EQ(count(page, "<figure>"), 7u) << "all but MFU, which has no values";
  for (const char* title :
       {"Loss", "Learning rate", "Gradient norm", "Throughput", "Peak memory", "Time of a step", "Waiting for data"}) {
    EXPECT_NE(page.find(std::string("<figcaption>") + title), std::string::npos) << title;
  }
  EXPECT_EQ(page.find("utilisation"), std::string::npos);
  EXPECT_EQ(page.find("class=\"dots"), std::string::npos);
}

TEST(Page, ValidationsAreDotsInTheChartOfTheLoss) {
  RunHistory history = a_history(50);
  for (const int64_t step : {10, 20}) history.add(nlohmann::json{{"step", step}, {"validation_loss", 4.5}});
  const std::string page = render_page({a_run(history)});
  EXPECT_EQ(count(page, "class=\"dots c1\""), 1u);
  EXPECT_NE(page.find("dots: validation"), std::string::npos);
}

TEST(Page, TextOfARunIsTextAndNoMarkup) {
  RunHistory history = a_history(3);
  RunView run = a_run(history, "a\"</script><b>");
  run.facts["sample"] = "<|begin_of_text|>\xff & more";
  run.facts["config"] = {{"job", {{"description", "</details><script>"}}}};
  for (const std::string& page : {render_page({run}), render_page({run, run})}) {
    EXPECT_EQ(page.find("<b>\""), std::string::npos);
    EXPECT_EQ(page.find("</details><script>"), std::string::npos);
    EXPECT_EQ(page.find("a\"</script>"), std::string::npos);
    EXPECT_EQ(count(page, "<script"), count(page, "</script>"));
  }
  EXPECT_NE(render_page({run}).find("&lt;|begin_of_text|&gt;"), std::string::npos);
}

TEST(Page, ARunThatGoesOnIsLoadedAgainAndOneThatHasEndedIsNot) {
  const RunHistory history = a_history(10);
  RunView run = a_run(history);
  run.written = 1e9;
  run.eta_seconds = 3600;
  run.standing = RunStatus::going_on;
  EXPECT_NE(render_page({run}).find("http-equiv=\"refresh\""), std::string::npos);
  EXPECT_NE(render_page({run}).find("time left"), std::string::npos);
  for (const auto& [standing, words] :
       {std::pair(RunStatus::finished, "finished"), std::pair(RunStatus::stopped, "stopped"),
        std::pair(RunStatus::broken_off, "ended by an error")}) {
    run.standing = standing;
    const std::string page = render_page({run});
    EXPECT_EQ(page.find("http-equiv=\"refresh\""), std::string::npos);
    EXPECT_NE(page.find(words), std::string::npos);
    EXPECT_EQ(page.find("time left"), std::string::npos);
  }
}

TEST(Page, OfSeveralRunsHasACurveOfEachAndWhereTheirConfigsDiffer) {
  const RunHistory one = a_history(50), two = a_history(80, 0.5);
  RunView first = a_run(one, "first"), second = a_run(two, "second");
  first.facts["config"] = {{"optimizer", {{"lr", 1e-3}, {"name", "AdamW"}}}};
  second.facts["config"] = {{"optimizer", {{"lr", 2e-3}, {"name", "AdamW"}}}};
  const std::string page = render_page({first, second});
  EXPECT_EQ(count(page, "class=\"line c0\""), 7u);
  EXPECT_EQ(count(page, "class=\"line c1\""), 7u);
  EXPECT_NE(page.find("<td>optimizer.lr</td><td>0.001</td><td>0.002</td>"), std::string::npos);
  EXPECT_EQ(page.find("AdamW"), std::string::npos) << "is alike";
}

TEST(Page, OfALongRunIsNoLargerThanItMayBe) {
  RunHistory history = a_history(300'000);
  for (int64_t step = 1; step <= 300'000; step += 7) {
    history.add(nlohmann::json{{"step", step}, {"validation_loss", 4.5}});
    history.add(nlohmann::json{{"step", step}, {"event", "spike"}, {"loss_deviations", 9.0}});
  }
  EXPECT_LT(render_page({a_run(history)}).size(), size_t{1} << 20);
}

TEST(Page, ALossThatIsNoLongerFiniteIsShownAsSuch) {
  RunHistory history = a_history(20);
  for (const auto& [written, shown] : {std::pair("nan", "NaN"), std::pair("inf", "∞"), std::pair("-inf", "−∞")}) {
    history.add(nlohmann::json{{"step", history.last_step() + 1}, {"loss", written}});
    EXPECT_NE(render_page({a_run(history)}).find(std::string("<span>loss, smoothed</span><b>") + shown),
              std::string::npos)
        << written;
  }
}

TEST(Page, AllChartsCoverTheSameSteps) {
  RunHistory history = a_history(20);
  history.add(nlohmann::json{{"step", 60}, {"loss", "nan"}, {"tps", 1000.0}});
  EXPECT_EQ(count(render_page({a_run(history)}), R"("a":1,"b":60,)"), 7u);
}

TEST(Page, NoTwoLabelsOfAnAxisAreAlike) {
  RunHistory history;
  for (int64_t step = 1'000'000; step < 1'000'010; ++step) {
    history.add(nlohmann::json{{"step", step}, {"loss", 1.7435 + 1e-5 * static_cast<double>(step % 10)}});
  }
  const std::string page = render_page({a_run(history)});
  for (const char* label : {">1.74350<", ">1.74355<", ">1000002<", ">1000004<"}) {
    EXPECT_EQ(count(page, label), 1u) << label;
  }
}

TEST(Page, ARunWithASingleStepOrOddNumbersIsDrawn) {
  const RunHistory single = a_history(1);
  EXPECT_EQ(count(render_page({a_run(single)}), "class=\"dots c0\""), 7u) << "a line without length shows nothing";
  RunHistory odd;
  odd.add(nlohmann::json{{"step", 1}, {"loss", "nan"}, {"lr", 0.0}});
  odd.add(nlohmann::json{{"step", 1'000'000'000'000}, {"loss", 1e300}, {"lr", -1e-300}});
  const std::string page = render_page({{"odd", nullptr, &odd}});
  EXPECT_EQ(page.find("nan "), std::string::npos);
  EXPECT_EQ(page.find("-nan"), std::string::npos);
  EXPECT_EQ(page.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace titan
