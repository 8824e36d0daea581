// GPUs and their links, by name or from a user's file.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "hardware_toml.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/estimate/simulate.h"

#define TOML_EXCEPTIONS 0  // as in config's TOML reader
#include <toml++/toml.h>

namespace titan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

/// Reads the numbers of a table and refuses other keys.
class NumberTable {
 public:
  NumberTable(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  double number(const char* key, double unit) {
    known_.insert(key);
    const std::optional<double> value = table_[key].value<double>();
    // A float8 rate of 0 says that the GPU has none. No rate of a machine is near 1e15 of these units.
    if (!value || !(*value >= 0 && *value < 1e15)) {
      throw Error(ExitCode::bad_config,
                  fmt::format("{}: {} is missing, or is not a number from 0 to 1e15", where_, key));
    }
    return *value * unit;
  }
  double number(const char* key, double unit, double otherwise) {
    known_.insert(key);
    return table_.contains(key) ? number(key, unit) : otherwise;
  }
  /// The table of that key; null: there is none.
  const toml::table* table(const char* key) {
    known_.insert(key);
    if (!table_.contains(key)) return nullptr;
    const toml::table* found = table_[key].as_table();
    if (!found) throw Error(ExitCode::bad_config, fmt::format("{}: {} is to be a table of shares", where_, key));
    return found;
  }
  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      if (known_.contains(std::string(key.str()))) continue;
      throw Error(ExitCode::bad_config,
                  fmt::format("{}:{}: there is no key {}; keys are {}", where_, node.source().begin.line, key.str(),
                              join(std::vector<std::string>(known_.begin(), known_.end()), ", ")));
    }
  }

 private:
  const toml::table& table_;
  std::string where_;
  std::set<std::string> known_;
};

/// Shares of the GPU's rates under `key`; `otherwise` where there are none.
RateShares read_shares(NumberTable& gpu, const char* key, const std::string& where, const RateShares& otherwise) {
  const toml::table* table = gpu.table(key);
  if (!table) return otherwise;
  const std::string place = fmt::format("{}, {}", where, key);
  NumberTable numbers(*table, place);
  RateShares shares;
  shares.products = numbers.number("products", 1);
  shares.float8_products = numbers.number("float8", 1);
  shares.attention = numbers.number("attention", 1);
  shares.flash_attention = numbers.number("flash", 1, shares.attention);
  shares.memory = numbers.number("memory", 1);
  numbers.refuse_others();
  for (const double share :
       {shares.products, shares.float8_products, shares.attention, shares.flash_attention, shares.memory}) {
    if (!(share > 0 && share <= 1)) throw Error(ExitCode::bad_config, place + ": shares are above 0 and at most 1");
  }
  return shares;
}

Hardware read_hardware(const std::string& name, const toml::table& table, const std::string& where) {
  Hardware hardware;
  hardware.name = name;
  NumberTable numbers(table, where);
  const auto number = [&](const char* key, double unit) { return numbers.number(key, unit); };
  hardware.memory_bytes = number("memory_gib", kGiB);
  hardware.product_rate = number("product_tflops", kTera);
  hardware.float8_rate = number("float8_tflops", kTera);
  hardware.attention_rate = number("attention_tflops", kTera);
  hardware.flash_attention_rate = numbers.number("flash_tflops", kTera, hardware.attention_rate);
  hardware.memory_rate = number("memory_gb_s", kGiga);
  hardware.nvlink_rate = number("nvlink_gb_s", kGiga);
  hardware.network_rate = number("network_gb_s", kGiga);
  hardware.host_link_rate = number("host_link_gb_s", kGiga);
  hardware.host_memory_rate = number("host_memory_gb_s", kGiga);
  const double gpus = number("gpus_per_host", 1);
  hardware.gpus_per_host = static_cast<int64_t>(gpus);
  const std::pair<const char*, double> amounts[]{
      {"memory_gib", hardware.memory_bytes},          {"product_tflops", hardware.product_rate},
      {"attention_tflops", hardware.attention_rate},  {"flash_tflops", hardware.flash_attention_rate},
      {"memory_gb_s", hardware.memory_rate},          {"nvlink_gb_s", hardware.nvlink_rate},
      {"network_gb_s", hardware.network_rate},        {"host_link_gb_s", hardware.host_link_rate},
      {"host_memory_gb_s", hardware.host_memory_rate}};
  for (const auto& [key, amount] : amounts) {
    // Less than a millionth of a unit is no rate either, and what is divided by it would be infinite.
    if (amount < kGiga / 1e6) throw Error(ExitCode::bad_config, fmt::format("{}: {} is to be above 0", where, key));
  }
  if (gpus < 1 || gpus > 1024 || gpus != std::floor(gpus)) {
    throw Error(ExitCode::bad_config, where + ": gpus_per_host is a whole number from 1 to 1,024");
  }
  hardware.likely = read_shares(numbers, "likely", where, RateShares());
  hardware.good = read_shares(numbers, "good", where, hardware.likely);
  numbers.refuse_others();
  return hardware;
}

}  // namespace

Hardware Hardware::in_a_step(const RateShares& shares, bool flash_attention) const {
  Hardware slower = *this;
  slower.product_rate *= shares.products;
  slower.float8_rate *= shares.float8_products;
  slower.attention_rate =
      flash_attention ? flash_attention_rate * shares.flash_attention : attention_rate * shares.attention;
  slower.memory_rate *= shares.memory;
  return slower;
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  const toml::parse_result known = toml::parse(std::string_view(kHardwareToml));
  for (const auto& [name, table] : known.table()) names.emplace_back(name.str());
  return names;
}

Hardware find_hardware(const std::string& name_or_file) {
  const toml::parse_result known = toml::parse(std::string_view(kHardwareToml));
  if (const auto* table = known.table()[name_or_file].as_table()) {
    return read_hardware(name_or_file, *table, "hardware " + name_or_file);
  }
  if (!std::filesystem::is_regular_file(name_or_file)) {
    throw Error(ExitCode::bad_config, fmt::format("--gpu {}: no GPU of that name and no file; known are {}",
                                                  name_or_file, join(hardware_names(), ", ")));
  }
  const toml::parse_result file = toml::parse_file(name_or_file);
  if (!file) {
    const toml::source_position at = file.error().source().begin;
    throw Error(ExitCode::bad_config,
                fmt::format("{}:{}:{}: {}", name_or_file, at.line, at.column, file.error().description()));
  }
  if (file.table().size() != 1 || !file.table().begin()->second.is_table()) {
    throw Error(ExitCode::bad_config,
                fmt::format("{} is to hold one table of a GPU, such as [my-gpu], and nothing else", name_or_file));
  }
  const std::string name(file.table().begin()->first.str());
  return read_hardware(name, *file.table()[name].as_table(), name_or_file);
}

std::optional<double> peak_flops_of(const std::string& device_name) {
  struct Row {
    std::string_view contains;
    std::string_view and_contains;
    double flops;
  };
  // Dense bf16 from the vendors' data sheets: those with sparsity are twice as high, and MFU would be halved. The first
  // row that matches applies, so variants come before the plain name.
  static constexpr Row rows[] = {{"a100", "", 312e12},  {"h100", "nvl", 835e12}, {"h100", "pcie", 756e12},
                                 {"h100", "", 989e12},  {"h200", "", 989e12},    {"h20", "", 148e12},
                                 {"gb200", "", 2.5e15}, {"gb300", "", 2.5e15},   {"b200", "", 2.25e15},
                                 {"b300", "", 2.25e15}, {"l40s", "", 362e12},    {"a6000", "", 154.85e12}};
  const std::string device = to_lower(device_name);
  for (const Row& row : rows) {
    if (device.find(row.contains) != std::string::npos && device.find(row.and_contains) != std::string::npos) {
      return row.flops;
    }
  }
  return std::nullopt;
}

}  // namespace titan
