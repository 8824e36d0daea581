#include "titan/base/process.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <ctime>

namespace titan {
namespace {

TEST(Clock, SecondsSince1970AreThoseOfTheSystem) {
  const auto before = static_cast<double>(std::time(nullptr));
  const double now = wall_time();
  EXPECT_GE(now, before);
  EXPECT_LE(now, static_cast<double>(std::time(nullptr)) + 1);
}

TEST(Clock, LocalTimeIsThatOfTheZone) {
  const char* const zone = ::getenv("TZ");
  const std::string before = zone != nullptr ? zone : "";
  ::setenv("TZ", "XYZ-5:30", 1);
  ::tzset();
  EXPECT_EQ(local_time(1700000000.9), "2023-11-15 03:43:20");
  EXPECT_EQ(local_time(1700000000, "%Y%m%d-%H%M"), "20231115-0343");
  zone != nullptr ? ::setenv("TZ", before.c_str(), 1) : ::unsetenv("TZ");
  ::tzset();
}

}  // namespace
}  // namespace titan
