#include "titan/app/program.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "run.h"
#include "titan/app/commands.h"
#include "titan/base/error.h"
#include "titan/cli/commands.h"

namespace titan {
namespace {

struct FailureCase {
  std::string name;
  std::function<void()> fail;
  int code;
  std::string says;
};

void PrintTo(const FailureCase& failure, std::ostream* out) { *out << failure.name; }

std::vector<FailureCase> failures() {
  auto error = [](ExitCode code) { return [code] { throw Error(code, "what; what to do"); }; };
  return {
      {"BadConfig", error(ExitCode::bad_config), 64, "titan_train: what; what to do\n"},
      {"BadData", error(ExitCode::bad_data), 65, "titan_train: what; what to do\n"},
      {"Bug", error(ExitCode::bug), 70, "titan_train: what; what to do\n"},
      {"OutOfMemory", error(ExitCode::out_of_memory), 71, "titan_train: what; what to do\n"},
      {"NonFinite", error(ExitCode::non_finite), 72, "titan_train: what; what to do\n"},
      {"Storage", error(ExitCode::storage), 73, "titan_train: what; what to do\n"},
      {"CodeOfSuccess", error(ExitCode::success), 70, "titan_train: what; what to do\n"},
      {"HostAllocation", [] { throw std::bad_alloc(); }, 71,
       "titan_train: out of memory; try a smaller training.local_batch_size or training.seq_len, or "
       "activation_checkpoint.mode = \"full\"\n"},
      {"TensorAllocation", [] { TORCH_CHECK(false, "x: can't allocate memory: you tried to allocate 8 bytes. Error"); },
       71, "out of memory (you tried to allocate 8 bytes)"},
      {"DeviceAllocation", [] { TORCH_CHECK(false, "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has"); }, 71,
       "out of memory (Tried to allocate 2 GiB)"},
      {"OtherGpu", [] { TORCH_CHECK(false, "CUDA error: no kernel image is available for execution on the device"); },
       64, "no code for this GPU's architecture"},
      {"OtherGpuOfAKernel",
       [] { throw std::runtime_error("kernel adam: no kernel image is available for execution on the device"); }, 64,
       "no code for this GPU's architecture"},
      {"Library", [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"); }, 71,
       "out of memory"},
      {"Tensors", [] { TORCH_CHECK(false, "shapes differ\nand a second line"); }, 70,
       "titan_train: internal error: shapes differ\n"},
      {"FileSystem",
       [] {
         throw std::filesystem::filesystem_error("cannot rename", "a",
                                                 std::make_error_code(std::errc::no_space_on_device));
       },
       73, "No space left on device"},
      {"AnythingElse", [] { throw std::runtime_error("odd"); }, 70, "titan_train: internal error: odd\n"},
  };
}

class ExitCodeOf : public ::testing::TestWithParam<FailureCase> {};

TEST_P(ExitCodeOf, AFailureIsOneLineOnStandardErrorAndTheCodeOfItsKind) {
  const FailureCase& failure = GetParam();
  const Outcome outcome = outcome_of([&] {
    return exit_code_of(
        [&] {
          failure.fail();
          return 0;
        },
        describe_failure);
  });
  EXPECT_EQ(outcome.code, failure.code);
  EXPECT_TRUE(holds(outcome.errors, failure.says));
  EXPECT_TRUE(outcome.errors.starts_with("titan_train: ")) << outcome.errors;
  EXPECT_EQ(outcome.errors.find('\n'), outcome.errors.size() - 1) << outcome.errors;
  EXPECT_EQ(outcome.output, "");
}

INSTANTIATE_TEST_SUITE_P(Failures, ExitCodeOf, ::testing::ValuesIn(failures()),
                         [](const auto& info) { return info.param.name; });

TEST(ExitCodeOf, WithoutAFailureItIsWhatTheFunctionReturns) {
  const Outcome outcome = outcome_of([] { return exit_code_of([] { return 37; }, describe_failure); });
  EXPECT_EQ(outcome.code, 37);
  EXPECT_EQ(outcome.errors, "");
}

TEST(RunProgram, AnExceptionThatLeavesAThreadEndsAsOneOfTheMainThreadDoes) {
  const auto uncaught = [](const auto& exception) {
    run_program({"--version"});
    std::thread([&] { throw exception; }).join();
  };
  EXPECT_EXIT(uncaught(std::bad_alloc()), testing::ExitedWithCode(71), "titan_train: out of memory");
  EXPECT_EXIT(uncaught(std::runtime_error("broken")), testing::KilledBySignal(SIGABRT),
              "titan_train: internal error: broken");
}

TEST(RunProgram, VersionNamesTheCommitAndTheLibrariesAndKernelsOfThisBuild) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(::testing::internal::RE::PartialMatch(outcome.output, "^titan_train [0-9]+\\.[0-9]+\\.[0-9]+\n"))
      << outcome.output;
  EXPECT_TRUE(::testing::internal::RE::PartialMatch(outcome.output, "\n  commit    [^ \n]+\n")) << outcome.output;
  EXPECT_TRUE(holds(outcome.output, "\n  LibTorch  2.11.0"));
  for (const char* line : {"\n  CUDA      ", "\n  NCCL      ", "\n  kernels   "})
    EXPECT_TRUE(holds(outcome.output, line));
}

TEST(Commands, EachIsEitherOfTheCommandLineOrFoundInTheLibrary) {
  for (const Command& command : commands()) {
    const std::vector<std::string> words{std::string(command.name)};
    EXPECT_EQ(find_call(words).has_value(), command.run != nullptr) << command.name;
    EXPECT_TRUE(find_call(words, commands_with_tensors())) << command.name;
  }
}

}  // namespace
}  // namespace titan
