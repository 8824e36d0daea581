#include "titan/report/prometheus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <tuple>

#include "titan/base/filesystem.h"

namespace titan {
namespace {

TEST(PrometheusText, NamesEveryNumberWithItsHelpItsTypeAndTheRun) {
  StepReport report;
  report.step = 7;
  report.loss = 2.5;
  report.tokens_seen = 57344;
  const std::string text = prometheus_text({"out \"a\"\\b", true, 12.5, report, {}});
  EXPECT_NE(text.find("# HELP titan_loss Loss of that step, mean over its valid tokens.\n# TYPE titan_loss gauge\n"
                      "titan_loss{run=\"out \\\"a\\\"\\\\b\"} 2.5\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE titan_tokens_seen_total counter\n"), std::string::npos);
  EXPECT_NE(text.find("titan_updated_timestamp_seconds{run=\"out \\\"a\\\"\\\\b\"} 12.5\n"), std::string::npos);
  EXPECT_EQ(text.find("validation"), std::string::npos);
  EXPECT_EQ(text.find("mfu"), std::string::npos) << "not known";
}

TEST(PrometheusText, StatisticsOfTheModelHaveTheirNamesAsALabel) {
  StepReport report;
  report.statistics = {{"balance", {0.5}}, {"load", {1, 2}}};
  const std::string text = prometheus_text({"out", true, 12.5, report, {}});
  EXPECT_NE(text.find("# TYPE titan_statistic gauge\ntitan_statistic{run=\"out\",name=\"balance\"} 0.5\n"
                      "titan_statistic{run=\"out\",name=\"load[0]\"} 1\n"
                      "titan_statistic{run=\"out\",name=\"load[1]\"} 2\n"),
            std::string::npos)
      << text;
}

TEST(PrometheusText, SpellsWhatIsNoFiniteNumberAsTheFormatDoes) {
  StepReport report;
  report.loss = NAN;
  report.grad_norm = INFINITY;
  const std::string text = prometheus_text({"r", true, 0, report, {}});
  EXPECT_NE(text.find("titan_loss{run=\"r\"} NaN\n"), std::string::npos);
  EXPECT_NE(text.find("titan_grad_norm{run=\"r\"} +Inf\n"), std::string::npos);
}

TEST(PrometheusFile, HoldsTheNewestValidationFromTheMomentItIsThere) {
  const auto file_path =
      std::filesystem::temp_directory_path() / ("titan-validation-" + std::to_string(::getpid()) + ".prom");
  const Log log;
  PrometheusFile file(file_path, "r", log);
  StepReport step;
  step.loss = 5;
  file.add(step, 100);
  ValidationReport validation;
  for (const auto& [number, loss, now] : {std::tuple(20, 4.5, 100.1), std::tuple(40, 4.25, 100.2)}) {
    validation.step = number;
    validation.loss = loss;
    file.add(validation, now);
    const std::string text = read_file(file_path);
    EXPECT_NE(
        text.find(fmt::format("# TYPE titan_validation_loss gauge\ntitan_validation_loss{{run=\"r\"}} {}\n", loss)),
        std::string::npos)
        << text;
    EXPECT_NE(text.find(fmt::format("titan_validation_step{{run=\"r\"}} {}\n", number)), std::string::npos);
    EXPECT_NE(text.find("titan_loss{run=\"r\"} 5\n"), std::string::npos) << "beside the newest step";
  }
  std::filesystem::remove(file_path);
}

TEST(PrometheusFile, IsReplacedAtMostOnceASecondAndAtTheEnd) {
  const auto folder = std::filesystem::temp_directory_path() / ("titan-prometheus-" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  const Log log;
  PrometheusFile file(folder / "titan.prom", "r", log);
  auto loss_at = [&](double loss, double now) {
    StepReport report;
    report.loss = loss;
    file.add(report, now);
    const std::string text = read_file(folder / "titan.prom");
    const size_t at = text.find("titan_loss{run=\"r\"} ");
    return text.substr(at + 20, text.find('\n', at) - at - 20);
  };
  EXPECT_EQ(loss_at(5, 100), "5");
  EXPECT_EQ(loss_at(4, 100.5), "5") << "too soon";
  EXPECT_EQ(loss_at(3, 101.5), "3");
  EXPECT_EQ(loss_at(2, 101.6), "3");
  file.finish(101.7);
  const std::string text = read_file(folder / "titan.prom");
  EXPECT_NE(text.find("titan_loss{run=\"r\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("titan_running{run=\"r\"} 0\n"), std::string::npos);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 1) << "nothing half-written stays";
  std::filesystem::remove_all(folder);
}

TEST(PrometheusFile, APlaceThatCannotBeWrittenToCostsOneWarning) {
  const Log log;
  ::testing::internal::CaptureStdout();
  PrometheusFile file("/proc/titan/titan.prom", "r", log);
  for (const double now : {1.0, 3.0, 5.0}) file.add(StepReport{}, now);
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("metrics.prometheus_file: cannot write /proc/titan/titan.prom: "), std::string::npos) << said;
  EXPECT_EQ(said.find("training continues"), said.rfind("training continues")) << said;
}

}  // namespace
}  // namespace titan
