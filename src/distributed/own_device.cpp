#include "titan/distributed/own_device.h"

#include <cstdlib>

#include "titan/base/error.h"
#include "titan/gpu/cuda.h"

namespace titan {

int chosen_gpu() { return opened_cuda() ? cuda().chosen() : 0; }

void choose_gpu(int number) {
  if (number != chosen_gpu()) cuda().choose(number);
  TITAN_CHECK(chosen_gpu() == number, chosen_gpu(), number);
}

std::vector<std::pair<std::string, std::string>> nccl_environment(int64_t remembered, const std::string& file_prefix,
                                                                  bool one_gpu_visible) {
  std::vector<std::pair<std::string, std::string>> environment{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
                                                               {"TORCH_FR_BUFFER_SIZE", std::to_string(remembered)}};
  if (one_gpu_visible) environment.emplace_back("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1");
  if (remembered == 0) return environment;
  environment.emplace_back("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
  environment.emplace_back("TORCH_FR_DUMP_TEMP_FILE", file_prefix);
  return environment;
}

void set_where_unset(const std::vector<std::pair<std::string, std::string>>& environment) {
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
}

}  // namespace titan
