#include "titan/report/step_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace titan {
namespace {

StepReport a_whole_step() {
  StepReport report;
  report.step = 7;
  report.total_steps = 1000;
  report.loss = 3.14159265;
  report.max_loss = 4.5;
  report.grad_norm = 1.5;
  report.learning_rate = 3e-4;
  report.step_seconds = 0.5;
  report.data_wait_seconds = 0.00123;
  report.tokens_per_second = 12345.6;
  report.flops_per_token = 57'914'449'920;
  report.peak_flops = 989e12;
  report.memory_bytes = int64_t{5} << 30;
  report.memory_total = int64_t{80} << 30;
  report.host_peak_bytes = 123;
  report.tokens_seen = 57344;
  report.eta_seconds = 4.2;
  return report;
}

TEST(ConsoleLine, BeginsWithTorchtitansFieldsUnchangedThenRateWaitAndTimeLeft) {
  EXPECT_EQ(console_line(a_whole_step(), false),
            "step:  7  loss:  3.14159  grad_norm:  1.5000  memory:  5.00GiB(6.25%)  tps: 12,346  tflops: 714.99  "
            "mfu: 72.29%  lr: 3.00e-04  data: 1.2ms  eta: 4.2s");
}

TEST(DryRunLine, ShowsMemoryAndNeitherALossNorAPace) {
  EXPECT_EQ(dry_run_line(a_whole_step()),
            "dry run, step  7: no loss, as nothing came from the other ranks; memory:  5.00GiB(6.25%)  "
            "computing: 500.0ms");
}

TEST(ConsoleLine, FieldsGrowWithTheirNumbers) {
  StepReport report = a_whole_step();
  report.step = 12345;
  report.loss = 1234.5;
  report.grad_norm = 98765.4321;
  report.tokens_per_second = 1'234'567.4;
  const std::string line = console_line(report, false);
  EXPECT_TRUE(line.starts_with("step: 12345  loss: 1234.50000  grad_norm: 98765.4321  memory: ")) << line;
  EXPECT_NE(line.find("  tps: 1,234,567  tflops: 71,499.29  mfu: 7229.45%  "), std::string::npos) << line;
}

TEST(ConsoleLine, ADeviceWithoutAKnownPeakShowsNoUtilisation) {
  StepReport report = a_whole_step();
  report.peak_flops.reset();
  EXPECT_NE(console_line(report, false).find("  mfu: n/a  "), std::string::npos);
}

TEST(ConsoleLine, SkippedStepsAndBadRecordsAreShownOnceThereAreAny) {
  StepReport report = a_whole_step();
  EXPECT_EQ(console_line(report, false).find("skipped"), std::string::npos);
  report.skipped_steps = 2;
  report.bad_records = 3;
  EXPECT_TRUE(console_line(report, false).ends_with("  skipped: 2  bad records: 3"));
}

StepReport with_statistics() {
  StepReport report = a_whole_step();
  report.statistics = {{"balance", {0.125}}, {"load", {1, 2.5}}, {"many", std::vector<double>(10, 3.0)}};
  return report;
}

TEST(ConsoleLine, StatisticsOfTheModelStandThereByName) {
  const std::string line = console_line(with_statistics(), false);
  EXPECT_TRUE(line.ends_with("  balance: 0.125  load: [1 2.5]  many: [3 3 3 3 3 3 3 3 … 10 values]")) << line;
}

TEST(JsonLine, StatisticsOfTheModelAreNumbersAndListsByName) {
  StepReport report = with_statistics();
  report.statistics[1].values[0] = std::nan("");
  const auto line = nlohmann::json::parse(json_line(report));
  EXPECT_EQ(line["statistics"]["balance"], 0.125);
  EXPECT_EQ(line["statistics"]["load"], nlohmann::json::parse(R"(["nan", 2.5])"));
  EXPECT_EQ(line["statistics"]["many"].size(), 10u);
  EXPECT_FALSE(nlohmann::json::parse(json_line(a_whole_step())).contains("statistics"));
}

TEST(TaggedValues, StatisticsOfTheModelAreThereByNameAndElement) {
  std::map<std::string, double> values;
  for (const TaggedValue& value : tagged_values(with_statistics())) values[value.tag] = value.value;
  EXPECT_EQ(values.at("statistics/balance"), 0.125);
  EXPECT_EQ(values.at("statistics/load[1]"), 2.5);
}

TEST(ConsoleLine, ANonFiniteLossIsWrittenAsSuch) {
  StepReport report = a_whole_step();
  report.loss = NAN;
  report.grad_norm = INFINITY;
  const std::string line = console_line(report, false);
  EXPECT_TRUE(line.starts_with("step:  7  loss:      nan  grad_norm:     inf  ")) << line;
}

TEST(ConsoleLine, ColoursAreTorchtitansAndSurroundTheSameText) {
  const std::string line = console_line(a_whole_step(), true);
  EXPECT_TRUE(
      line.starts_with("\x1b[31mstep:  7\x1b[39m  \x1b[32mloss:  3.14159\x1b[39m  "
                       "\x1b[38;2;180;60;0mgrad_norm:  1.5000\x1b[39m  "
                       "\x1b[38;2;54;234;195mmemory:  5.00GiB(6.25%)\x1b[39m  \x1b[34mtps: 12,346\x1b[39m  "
                       "\x1b[36mtflops: 714.99\x1b[39m  \x1b[35mmfu: 72.29%\x1b[39m"))
      << line;
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else {
      plain += line[i];
    }
  }
  EXPECT_EQ(plain, console_line(a_whole_step(), false));
}

TEST(ConsoleLine, OfAValidationHasItsOwnFields) {
  const ValidationReport report{20, 2.5, 4321.0, int64_t{1} << 29, int64_t{1} << 34};
  EXPECT_EQ(console_line(report, false), "validate step: 20  loss:  2.5000  memory:  0.50GiB(3.12%)  tps: 4,321");
  EXPECT_TRUE(
      console_line(report, true).starts_with("\x1b[33mvalidate step: 20\x1b[39m  \x1b[32mloss:  2.5000\x1b[39m  "));
}

TEST(JsonLine, HoldsEveryFieldAsANumber) {
  const auto line = nlohmann::json::parse(json_line(a_whole_step()));
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["loss"], 3.14159265);
  EXPECT_EQ(line["global_max_loss"], 4.5);
  EXPECT_EQ(line["grad_norm"], 1.5);
  EXPECT_EQ(line["lr"], 3e-4);
  EXPECT_EQ(line["tps"], 12345.6);
  EXPECT_EQ(line["step_seconds"], 0.5);
  EXPECT_EQ(line["data_wait_seconds"], 0.00123);
  EXPECT_EQ(line["memory_peak_bytes"], int64_t{5} << 30);
  EXPECT_EQ(line["memory_peak_rss_bytes"], 123);
  EXPECT_EQ(line["tokens_seen"], 57344);
  EXPECT_NEAR(line["tflops"].get<double>(), 714.99, 0.01);
  EXPECT_NEAR(line["mfu_percent"].get<double>(), 72.29, 0.01);
  EXPECT_EQ(line["data_bad_records"], 0);
  EXPECT_EQ(line["data_long_conversations"], 0);
  EXPECT_EQ(line["data_loops"], 0);
  EXPECT_EQ(line["skipped_steps"], 0);
  EXPECT_EQ(json_line(a_whole_step()).find('\n'), std::string::npos);
}

TEST(JsonLine, WithoutAKnownPeakThereIsNoUtilisation) {
  StepReport report = a_whole_step();
  report.peak_flops.reset();
  EXPECT_FALSE(nlohmann::json::parse(json_line(report)).contains("mfu_percent"));
}

TEST(JsonLine, NumbersThatAreNotFiniteBecomeWordsAndTheLineStaysJson) {
  StepReport report = a_whole_step();
  report.loss = NAN;
  report.grad_norm = -INFINITY;
  report.tokens_per_second = INFINITY;
  const auto line = nlohmann::json::parse(json_line(report));
  EXPECT_EQ(line["loss"], "nan");
  EXPECT_EQ(line["grad_norm"], "-inf");
  EXPECT_EQ(line["tps"], "inf");
  EXPECT_EQ(nlohmann::json::parse(json_line(ValidationReport{1, NAN, 1, 1, 1}))["validation_loss"], "nan");
}

TEST(StragglerReport, SaysWhereTheRankIsAndWhatTheSystemReports) {
  StragglerReport report{.step = 24, .rank = 5, .ratio = 1.312, .ranks = 8, .steps = 20, .host = "node7"};
  EXPECT_EQ(sentence(report),
            "rank 5 (host node7) has computed 1.31 times as long as the median of 8 ranks with the same work, for 20 "
            "steps; all ranks wait for it");
  EXPECT_FALSE(nlohmann::json::parse(json_line(report)).contains("celsius"));
  report.megahertz = 1200, report.celsius = 94;
  EXPECT_TRUE(sentence(report).starts_with("rank 5 (host node7, 1200 MHz, 94 °C) has computed"));
  const nlohmann::json line = nlohmann::json::parse(json_line(report));
  EXPECT_EQ(line["event"], "straggler");
  EXPECT_EQ(line["step"], 24);
  EXPECT_EQ(line["megahertz"], 1200);
  EXPECT_EQ(line["host"], "node7");
}

std::vector<std::string> tags_of(const std::vector<TaggedValue>& values) {
  std::vector<std::string> tags;
  for (const TaggedValue& value : values) tags.push_back(value.tag);
  return tags;
}

TEST(TaggedValues, AreTorchtitansInItsOrderThenOurs) {
  EXPECT_EQ(tags_of(tagged_values(a_whole_step())),
            (std::vector<std::string>{"loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "throughput(tps)",
                                      "tflops", "mfu(%)", "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)",
                                      "time_metrics/data_loading(%)", "memory/max_active(GiB)", "memory/max_active(%)",
                                      "memory/max_reserved(GiB)", "memory/max_reserved(%)", "memory/num_alloc_retries",
                                      "memory/num_ooms", "grad_norm", "n_tokens_seen", "lr", "skipped_steps"}));
  EXPECT_EQ(tags_of(tagged_values(ValidationReport{})),
            (std::vector<std::string>{
                "validation_metrics/loss", "validation_metrics/throughput(tps)",
                "validation_metrics/memory/max_active(GiB)", "validation_metrics/memory/max_active(%)",
                "validation_metrics/memory/max_reserved(GiB)", "validation_metrics/memory/max_reserved(%)"}));
}

TEST(TaggedValues, AreInTheUnitsOfTheirNames) {
  StepReport report = a_whole_step();
  report.active_bytes = int64_t{4} << 30;
  report.allocation_retries = 3;
  std::map<std::string, double> values;
  for (const TaggedValue& one : tagged_values(report)) values[one.tag] = one.value;
  EXPECT_EQ(values["loss_metrics/global_max_loss"], 4.5);
  EXPECT_NEAR(values["mfu(%)"], 72.29, 0.005);
  EXPECT_NEAR(values["time_metrics/data_loading(%)"], 0.246, 1e-9);
  EXPECT_EQ(values["memory/max_active(GiB)"], 4);
  EXPECT_EQ(values["memory/max_reserved(%)"], 6.25);
  EXPECT_EQ(values["memory/num_alloc_retries"], 3);
}

}  // namespace
}  // namespace titan
