#include "cases.h"

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

Numbers::Numbers(KernelType type, size_t count, size_t offset)
    : type_(type), count_(count), offset_(offset), buffer_((count + offset) * static_cast<size_t>(bytes_of(type))) {}

Numbers::Numbers(KernelType type, const std::vector<double>& values, size_t offset)
    : Numbers(type, values.size(), offset) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    if (type == KernelType::fp32) {
      static_cast<float*>(data())[i] = single;
    } else {
      narrow(single, static_cast<BFloat16Bits*>(data())[i]);
    }
  }
}

double Numbers::operator[](size_t i) const {
  const unsigned char* begin = buffer_.data() + offset_ * static_cast<size_t>(bytes_of(type_));
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

void Findings::compare_traffic(const KernelTraffic& expected) {
  const cuda_on_host::Counted counted = cuda_on_host::counted();
  const auto check = [&](const char* what, int64_t actual, int64_t wanted) {
    if (actual != wanted)
      say("bytes " + std::string(what) + ": " + std::to_string(actual) + " counted, " + std::to_string(wanted) +
          " stated");
  };
  check("read", counted.read, expected.read);
  check("written", counted.written, expected.written);
  check("read again", counted.reread, expected.reread);
  check("written again", counted.rewritten, 0);
}

}  // namespace titan
