#include "titan/report/trace_summary.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "titan/base/error.h"

namespace titan {
namespace {

using Kind = TraceEvent::Kind;

PartTime part(const std::vector<PartTime>& parts, const std::string& name) {
  for (const PartTime& one : parts) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

/// A step of 1000 µs: forward of two layers with an operation each, one of which has another inside it.
std::vector<TraceEvent> a_traced_step() {
  return {{Kind::step, "ProfilerStep#1", 1, 0, 1000}, {Kind::range, "forward layers.0", 1, 100, 200},
          {Kind::range, "gather", 1, 100, 50},        {Kind::operation, "aten::linear", 1, 160, 120},
          {Kind::operation, "aten::mm", 1, 170, 100}, {Kind::range, "forward layers.1", 1, 300, 300},
          {Kind::operation, "aten::mm", 1, 400, 200}, {Kind::operation, "aten::copy_", 2, 0, 50},
          {Kind::range, "elsewhere", 2, 0, 900}};
}

TEST(TraceSummary, PartsAreWithoutWhatLiesInsideThemAndLayersAreOnePart) {
  const TraceSummary summary = summarize(a_traced_step());
  EXPECT_EQ(summary.steps, 1);
  EXPECT_EQ(summary.length, 1000);
  const PartTime forward = part(summary.host_parts, "forward layers.*");
  EXPECT_EQ(forward.calls, 2);
  EXPECT_EQ(forward.total, 150 + 300);
  EXPECT_EQ(part(summary.host_parts, "gather").total, 50);
  EXPECT_EQ(part(summary.host_parts, "outside of named parts").total, 1000 - 500);
  for (const PartTime& one : summary.host_parts) EXPECT_NE(one.name, "elsewhere") << "another thread's";
}

TEST(TraceSummary, OperationsCountWhatTheyTakeThemselvesOnAnyThread) {
  const TraceSummary summary = summarize(a_traced_step());
  EXPECT_EQ(part(summary.operations, "aten::mm").total, 300);
  EXPECT_EQ(part(summary.operations, "aten::mm").calls, 2);
  EXPECT_EQ(part(summary.operations, "aten::linear").total, 20);
  EXPECT_EQ(part(summary.operations, "aten::copy_").total, 50);
  EXPECT_EQ(summary.operations[0].name, "aten::mm") << "longest first";
}

TEST(TraceSummary, GapsAreWhereTheMainThreadIsInNoOperation) {
  const TraceSummary summary = summarize(a_traced_step());
  EXPECT_EQ(summary.host_busy, 320);
  ASSERT_EQ(summary.gaps.size(), 3u);
  EXPECT_EQ(summary.gaps[0].length, 400);
  EXPECT_EQ(summary.gaps[0].after, "the step's end");
  EXPECT_EQ(summary.gaps[1].length, 160);
  EXPECT_EQ(summary.gaps[1].before, "the step's beginning");
  EXPECT_EQ(summary.gaps[2].length, 120);
  EXPECT_EQ(summary.gaps[2].before, "aten::linear");
  EXPECT_EQ(summary.gaps[2].after, "aten::mm");
}

TEST(TraceSummary, ADeviceIsBusyWhileAnyStreamIsAndWorksBeyondTheHostsStep) {
  std::vector<TraceEvent> events = a_traced_step();
  events.push_back({Kind::kernel, "gemm", 7, 200, 300});
  events.push_back({Kind::kernel, "copy", 8, 400, 200});
  events.push_back({Kind::kernel, "gemm", 7, 800, 400});
  events.push_back({Kind::device_range, "forward layers.0", 7, 200, 300});
  const TraceSummary summary = summarize(events);
  EXPECT_TRUE(summary.has_device);
  EXPECT_EQ(summary.length, 1200);
  EXPECT_EQ(summary.device_busy, 400 + 400);
  EXPECT_EQ(part(summary.kernels, "gemm").total, 700);
  EXPECT_EQ(part(summary.device_parts, "forward layers.*").total, 300);
  ASSERT_EQ(summary.gaps.size(), 2u);
  EXPECT_EQ(summary.gaps[0].length, 200);
  EXPECT_EQ(summary.gaps[0].before, "the step's beginning");
  EXPECT_EQ(summary.gaps[1].before, "copy");
}

double total_of(const std::vector<PartTime>& parts) {
  double total = 0;
  for (const PartTime& one : parts) total += one.total;
  return total;
}

TEST(TraceSummary, KindsOfTheHostsWorkAddUpToTheStep) {
  std::vector<TraceEvent> events = a_traced_step();
  events.push_back({Kind::range, "optimizer", 1, 700, 100});
  events.push_back({Kind::operation, "aten::mm", 1, 710, 80});
  events.push_back({Kind::operation, "aten::scaled_dot_product_attention", 1, 850, 30});
  events.push_back({Kind::operation, "aten::mul", 1, 900, 20});
  const TraceSummary summary = summarize(events);
  EXPECT_EQ(part(summary.kinds, "matrix products").total, 320);
  EXPECT_EQ(part(summary.kinds, "attention").total, 30);
  EXPECT_EQ(part(summary.kinds, "elementwise and reductions").total, 20);
  EXPECT_EQ(part(summary.kinds, "optimizer").total, 80) << "whatever it consists of";
  EXPECT_EQ(summary.kinds.back().name, "own loops, waits and gaps");
  EXPECT_EQ(total_of(summary.kinds), summary.length);
}

TEST(TraceSummary, KindsOfADevicesWorkGoByTheNamesOfKernels) {
  std::vector<TraceEvent> events = a_traced_step();
  const std::vector<std::pair<const char*, const char*>> names = {
      {"nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NTT", "matrix products"},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matrix products"},
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "matrix products"},
      {"void cublasLt::splitKreduce_kernel<32, 16, int>", "matrix products"},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", "attention"},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"},
      {"fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)", "attention"},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", "communication"},
      {"Memcpy DtoD (Device -> Device)", "copies"},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", "elementwise and reductions"}};
  std::map<std::string, double> expected;
  double begin = 0;
  for (const auto& [name, kind] : names) {
    events.push_back({Kind::kernel, name, 7, begin, 40});
    expected[kind] += 40;
    begin += 50;
  }
  events.push_back({Kind::device_range, "optimizer", 7, 600, 100});
  events.push_back({Kind::kernel, "void multi_tensor_apply_kernel<gemm>", 7, 620, 60});
  events.push_back({Kind::kernel, "gemm", 8, 620, 60});  // another stream, which goes on meanwhile
  expected["optimizer"] = 60;
  expected["matrix products"] += 60;
  const TraceSummary summary = summarize(events);
  for (const auto& [kind, total] : expected) EXPECT_EQ(part(summary.kinds, kind).total, total) << kind;
  EXPECT_EQ(summary.kinds.size(), expected.size() + 1);
  EXPECT_EQ(summary.kinds.back().name, "gaps");
  EXPECT_EQ(summary.kinds.back().total, 1000 - 10 * 40 - 60) << "what two streams do at once counts once";
}

TEST(TraceSummary, LinesFitAWideTerminalWhateverTheNames) {
  std::vector<TraceEvent> events = a_traced_step();
  TraceEvent& longest = events.emplace_back();  // in parts: gcc 12 warns of a move that it misreads
  longest = TraceEvent{Kind::kernel, {}, 7, 200, 300};
  longest.name.assign(500, 'k');
  const std::string text = summary_text(summarize(events), 3);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    EXPECT_LE(end - begin, 120u) << text.substr(begin, end - begin);
  }
  EXPECT_NE(text.find("1 step, 1.000 ms; the main thread is in operations 32.0% of it"), std::string::npos) << text;
}

class TraceFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string refusal() const {
    try {
      read_trace(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path path_ = std::filesystem::temp_directory_path() / ("titan-trace-" + std::to_string(::getpid()));
  const std::string text_ =
      R"({"schemaVersion": 1, "deviceProperties": [{"id": 0, "ph": "X"}], "traceEvents": [
      {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 5, "ts": 12.5, "dur": 3.25, "args": {"a": {"b": [1]}}},
      {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "tid": 5, "ts": 10, "dur": 9},
      {"ph": "X", "cat": "kernel", "name": "gemm", "tid": "stream 7", "ts": 13, "dur": 1},
      {"ph": "M", "name": "process_name", "args": {"name": "x"}},
      {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 5, "ts": 12, "dur": 1}],
      "others": [{"ph": "X", "cat": "cpu_op", "name": "none", "ts": 1}]})";
};

TEST_F(TraceFile, GivesItsEventsWithALengthAndNothingElse) {
  write(text_);
  const std::vector<TraceEvent> events = read_trace(path_);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].name, "aten::mm");
  EXPECT_EQ(events[0].begin, 12.5);
  EXPECT_EQ(events[0].length, 3.25);
  EXPECT_EQ(events[0].thread, 5);
  EXPECT_EQ(events[1].kind, Kind::step);
  EXPECT_EQ(events[2].kind, Kind::kernel);
}

TEST_F(TraceFile, MayBeAListAndMayBeCompressed) {
  write(R"([{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": 1, "dur": 1}])");
  EXPECT_EQ(read_trace(path_).size(), 1u);
  gzFile file = ::gzopen(path_.c_str(), "wb");
  ::gzwrite(file, text_.data(), static_cast<unsigned>(text_.size()));
  ::gzclose(file);
  EXPECT_EQ(read_trace(path_).size(), 3u);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 12);
  EXPECT_NE(refusal().find("cannot read " + path_.string()), std::string::npos) << refusal();
}

TEST_F(TraceFile, ThatIsNoTraceIsRefusedWithItsPath) {
  EXPECT_NE(refusal().find("cannot read " + path_.string() + ": No such file"), std::string::npos) << refusal();
  for (const char* text : {"", "not JSON", "{\"traceEvents\": [{\"ph\": \"X\",", "{}", "[]", "[1, 2]",
                           "{\"traceEvents\": 3}", "{\"traceEvents\": [{\"ph\": 1, \"ts\": \"a\"}]}"}) {
    write(text);
    EXPECT_NE(refusal().find(path_.string()), std::string::npos) << text << ": " << refusal();
  }
  write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n");
  EXPECT_NE(refusal().find("this is a Git LFS pointer"), std::string::npos) << refusal();
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("it is a pipe or a device"), std::string::npos) << refusal();
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_NE(refusal().find("Is a directory"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace titan
