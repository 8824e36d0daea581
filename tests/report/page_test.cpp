#include "titan/report/page.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "support/occurrences.h"

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

ReportedRun a_run(const RunHistory& history, const std::string& name = "run") {
  return {name, {{"description", "a run"}, {"steps", 1000}, {"model", "llama3 <small>"}}, &history};
}

/// What the page's script draws from.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"runs\">";
  const size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(Page, NeedsNothingFromElsewhere) {
  const RunHistory history = a_history(50);
  const std::string page = render_page({a_run(history)});
  for (const char* outside : {"https:", "src=", "href=", "@import", "import(", "url(", "fetch(", "XMLHttpRequest",
                              "WebSocket", "sendBeacon", "{{"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  for (const char* markup : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"}) {
    EXPECT_EQ(page.find(markup), std::string::npos) << markup << " would make elements of a run's text";
  }
  EXPECT_EQ(occurrences(page, "http:"), occurrences(page, "http://www.w3.org/2000/svg"))
      << "a name, and nothing that is loaded";
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
}

TEST(Page, HasEveryCurveThatHasValuesAndNoOther) {
  const RunHistory history = a_history(50);
  const nlohmann::json series = data_of(render_page({a_run(history)}))["runs"][0]["series"];
  EXPECT_EQ(series.size(), 7u) << "all but MFU and validations, which have no values";
  for (const char* key : {"loss", "lr", "grad_norm", "tps", "memory_peak_bytes", "step_seconds", "data_wait_seconds"}) {
    ASSERT_TRUE(series.contains(key)) << key;
    EXPECT_EQ(series[key]["x"].size(), 50u) << key;
    EXPECT_EQ(series[key]["y"].size(), 50u) << key;
    EXPECT_EQ(series[key]["s"].size(), 50u) << key;
    EXPECT_FALSE(series[key].contains("lo")) << "a bucket is a step";
  }
  EXPECT_EQ(series["loss"]["a"], 1);
  EXPECT_EQ(series["loss"]["b"], 50);
  EXPECT_NEAR(series["loss"]["y"][9].get<double>(), 3 + 5 * std::exp(-0.1), 1e-5);
}

TEST(Page, HasACurveOfEachStatisticOfTheModel) {
  RunHistory history = a_history(5);
  history.add_line(R"({"step":6,"loss":3,"statistics":{"balance":0.5,"load":[1,2]}})");
  const std::string page = render_page({a_run(history)});
  const nlohmann::json run = data_of(page)["runs"][0];
  EXPECT_EQ(run["statistics"],
            nlohmann::json::parse(R"(["statistics.balance","statistics.load[0]","statistics.load[1]"])"));
  EXPECT_EQ(run["series"]["statistics.load[1]"]["y"][0], 2.0);
  EXPECT_NE(page.find("of new Set(runs.flatMap(run => run.statistics))) charts.push"), std::string::npos);
}

TEST(Page, ACurveOfManyStepsHasTheRangeOfEachBucket) {
  const RunHistory history = a_history(2000);
  const nlohmann::json loss = data_of(render_page({a_run(history)}))["runs"][0]["series"]["loss"];
  const size_t buckets = loss["x"].size();
  ASSERT_GT(buckets, 0u);
  ASSERT_LE(buckets, Series::kMostBuckets);
  for (const char* key : {"y", "s", "lo", "hi"}) ASSERT_EQ(loss[key].size(), buckets) << key;
  EXPECT_LT(loss["lo"][0], loss["hi"][0]);
  for (size_t i = 0; i < buckets; ++i) {
    EXPECT_LE(loss["lo"][i], loss["y"][i]);
    EXPECT_LE(loss["y"][i], loss["hi"][i]);
  }
}

TEST(Page, TextOfARunIsTextAndNoMarkup) {
  RunHistory history = a_history(3);
  ReportedRun run = a_run(history, "a\"</script><b>");
  run.facts["sample"] = "<|begin_of_text|>\xff & more";
  run.facts["config"] = {{"job", {{"description", "</details><script>"}}}};
  run.facts["description"] = "</title><script>";
  const size_t scripts = occurrences(render_page({a_run(history)}), "<script");
  for (const std::string& page : {render_page({run}), render_page({run, run})}) {
    EXPECT_EQ(page.find("</details><script>"), std::string::npos);
    EXPECT_EQ(page.find("a\"</script>"), std::string::npos);
    EXPECT_EQ(page.find("</title><script>"), std::string::npos);
    EXPECT_EQ(occurrences(page, "<script"), scripts);
    EXPECT_EQ(occurrences(page, "</script>"), scripts);
    EXPECT_EQ(data_of(page)["runs"][0]["facts"]["sample"], "<|begin_of_text|>\xEF\xBF\xBD & more");
  }
}

TEST(Page, ARunThatContinuesIsLoadedAgainAndOneThatHasEndedIsNot) {
  const RunHistory history = a_history(10);
  ReportedRun run = a_run(history);
  run.written = 1e9;
  run.eta_seconds = 3600;
  run.status = CompletionStatus::going_on;
  EXPECT_NE(render_page({run}).find("http-equiv=\"refresh\""), std::string::npos);
  EXPECT_NE(data_of(render_page({run}))["runs"][0]["eta"], "");
  for (const auto& [status, words] :
       {std::pair(CompletionStatus::finished, "finished"), std::pair(CompletionStatus::stopped, "stopped"),
        std::pair(CompletionStatus::broken_off, "ended by an error")}) {
    run.status = status;
    const std::string page = render_page({run});
    EXPECT_EQ(page.find("http-equiv=\"refresh\""), std::string::npos);
    EXPECT_EQ(data_of(page)["runs"][0]["status"][1], words);
    EXPECT_EQ(data_of(page)["runs"][0]["eta"], "");
  }
}

TEST(Page, OfSeveralRunsHasTheCurvesAndOptionsOfEach) {
  const RunHistory one = a_history(50), two = a_history(80, 0.5);
  ReportedRun first = a_run(one, "first"), second = a_run(two, "second");
  first.facts["config"] = {{"optimizer", {{"lr", 1e-3}, {"name", "AdamW"}}}};
  second.facts["config"] = {{"optimizer", {{"lr", 2e-3}, {"name", "AdamW"}}}};
  const nlohmann::json runs = data_of(render_page({first, second}))["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["name"], "first");
  EXPECT_EQ(runs[1]["series"]["loss"]["x"].size(), 80u);
  EXPECT_EQ(runs[0]["config"]["optimizer.lr"], "0.001");
  EXPECT_EQ(runs[1]["config"]["optimizer.lr"], "0.002");
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
    const std::string page = render_page({a_run(history)});
    EXPECT_EQ(data_of(page)["runs"][0]["newest"]["loss"], shown);
    EXPECT_NE(page.find(std::string("<td>loss ") + shown), std::string::npos) << "without JavaScript";
  }
}

TEST(Page, ARunWithASingleStepOrOddNumbersIsJson) {
  const RunHistory single = a_history(1);
  EXPECT_EQ(data_of(render_page({a_run(single)}))["runs"][0]["series"]["loss"]["x"].size(), 1u);
  RunHistory odd;
  odd.add(nlohmann::json{{"step", 1}, {"loss", "nan"}, {"lr", 0.0}});
  odd.add(nlohmann::json{{"step", 2}, {"lr", 1e-310}});
  odd.add(nlohmann::json{{"step", 1'000'000'000'000}, {"loss", 1e300}, {"lr", -1e-300}});
  const nlohmann::json run = data_of(render_page({{"odd", nullptr, &odd}}))["runs"][0];
  EXPECT_EQ(run["series"]["loss"]["y"][0], 1e300);
  EXPECT_EQ(run["series"]["lr"]["y"], (nlohmann::json{0.0, 1e-310, -1e-300}));
  EXPECT_EQ(run["title"], "odd");
  const RunHistory empty;
  EXPECT_EQ(data_of(render_page({{"empty", nullptr, &empty}}))["runs"][0]["series"].size(), 0u);
}

}  // namespace
}  // namespace titan
