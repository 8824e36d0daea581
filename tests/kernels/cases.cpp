#include "cases.h"

#include <cmath>
#include <cstring>
#include <random>

namespace titan {

std::vector<KernelCase>& kernel_cases() {
  static std::vector<KernelCase> cases;
  return cases;
}

AddKernelCases::AddKernelCases(std::vector<KernelCase> cases) {
  for (KernelCase& one : cases) kernel_cases().push_back(std::move(one));
}

double rounded_to(KernelType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == KernelType::fp32) return single;
  BFloat16Bits bits;
  narrow(single, bits);
  return widen(bits);
}

std::vector<double> numbers(size_t count, uint64_t seed, KernelType type, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(count);
  for (double& value : values) value = rounded_to(type, normal(random));
  return values;
}

Numbers::Numbers(KernelMachine& machine, KernelType type, size_t count, size_t offset)
    : type_(type),
      count_(count),
      offset_(offset),
      array_(machine, (count + offset) * static_cast<size_t>(bytes_of(type))) {}

namespace {

/// As memory holds `values` behind `offset` unused numbers.
std::vector<unsigned char> bytes_with(KernelType type, const std::vector<double>& values, size_t offset) {
  const auto size = static_cast<size_t>(bytes_of(type));
  std::vector<unsigned char> bytes((values.size() + offset) * size, 0xff);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    BFloat16Bits half;
    narrow(single, half);
    const void* number = type == KernelType::fp32 ? static_cast<const void*>(&single) : &half;
    std::memcpy(bytes.data() + (offset + i) * size, number, size);
  }
  return bytes;
}

}  // namespace

Numbers::Numbers(KernelMachine& machine, KernelType type, const std::vector<double>& values, size_t offset)
    : type_(type), count_(values.size()), offset_(offset), array_(machine, bytes_with(type, values, offset)) {}

double Numbers::operator[](size_t i) const {
  const unsigned char* begin = array_.values() + offset_ * static_cast<size_t>(bytes_of(type_));
  if (type_ == KernelType::fp32) return reinterpret_cast<const float*>(begin)[i];
  return widen(reinterpret_cast<const BFloat16Bits*>(begin)[i]);
}

void Findings::say(const std::string& what) {
  if (text_.size() < 600) text_ += what + "\n";
}

void Findings::compare_one(const std::string& what, size_t index, double actual, double expected, double bound,
                           double floor) {
  const bool same = actual == expected || (std::isnan(actual) && std::isnan(expected));
  if (same || std::fabs(actual - expected) <= bound * std::max(std::fabs(expected), floor)) return;
  say(what + "[" + std::to_string(index) + "] is " + std::to_string(actual) + ", not " + std::to_string(expected));
}

void Findings::compare_amax(KernelMachine& machine, KernelType type, Numbers& written, uint32_t raised) {
  MachineArray<uint32_t> slot(machine, std::vector<uint32_t>{0});
  const auto count = static_cast<int64_t>(written.size());
  machine.launch(&Kernels::amax, {type, 1, count, KernelExtent::matrix, written.data(), slot.data()});
  if (raised != slot[0]) {
    say("the amax has the bits " + std::to_string(raised) + ", not " + std::to_string(slot[0]));
  }
}

void Findings::compare_traffic(const KernelMachine& machine, const KernelTraffic& stated) {
  const std::string difference = machine.traffic_difference(stated);
  if (!difference.empty()) say(difference);
}

}  // namespace titan
