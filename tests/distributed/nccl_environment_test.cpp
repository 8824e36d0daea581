#include "titan/distributed/own_device.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace titan {
namespace {

TEST(NcclEnvironment, HasTheLibraryRememberAndWriteWhatTheConfigSays) {
  const std::vector<std::pair<std::string, std::string>> wanted{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                                                {"TORCH_FR_BUFFER_SIZE", "20000"},
                                                                {"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
                                                                {"TORCH_FR_DUMP_TEMP_FILE", "out/comm_traces/rank_"}};
  EXPECT_EQ(nccl_environment(20000, "out/comm_traces/rank_", /*one_gpu_visible=*/false), wanted);
}

TEST(NcclEnvironment, NothingIsWrittenWhereNothingIsRemembered) {
  const std::vector<std::pair<std::string, std::string>> wanted{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                                                {"TORCH_FR_BUFFER_SIZE", "0"}};
  EXPECT_EQ(nccl_environment(0, "rank_", /*one_gpu_visible=*/false), wanted);
}

TEST(NcclEnvironment, RanksThatSeeOneGpuEachMayAllCallItNumber0) {
  const std::vector<std::pair<std::string, std::string>> wanted{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                                                {"TORCH_FR_BUFFER_SIZE", "0"},
                                                                {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1"}};
  EXPECT_EQ(nccl_environment(0, "rank_", /*one_gpu_visible=*/true), wanted);
}

TEST(NcclEnvironment, WhatTheUserHasSetStands) {
  ::setenv("TITAN_TEST_SET", "mine", /*overwrite=*/1);
  ::unsetenv("TITAN_TEST_UNSET");
  set_where_unset({{"TITAN_TEST_SET", "other"}, {"TITAN_TEST_UNSET", "new"}});
  EXPECT_STREQ(std::getenv("TITAN_TEST_SET"), "mine");
  EXPECT_STREQ(std::getenv("TITAN_TEST_UNSET"), "new");
}

}  // namespace
}  // namespace titan
