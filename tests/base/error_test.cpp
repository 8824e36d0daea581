#include "titan/base/error.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

TEST(Error, ARemedyIsPutBehindTheMessageAndTheCodeStays) {
  try {
    with_remedy("make room", [] { throw Error(ExitCode::storage, "cannot write x"); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot write x; make room");
    EXPECT_EQ(error.code(), ExitCode::storage);
  }
}

TEST(Error, WithoutAnErrorARemedyChangesNothing) {
  EXPECT_EQ(with_remedy("unused", [] { return 7; }), 7);
  EXPECT_THROW(with_remedy("unused", []() -> int { throw std::string("of another kind"); }), std::string);
}

TEST(Error, ABrokenInvariantNamesConditionValuesAndPlace) {
  const int apples = 3;
  try {
    TITAN_CHECK(apples == 4, apples, apples + 1);
    FAIL() << "nothing was thrown";
  } catch (const InvariantError& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ExitCode::bug);
    EXPECT_NE(message.find("apples == 4"), std::string::npos) << message;
    EXPECT_NE(message.find("3 4"), std::string::npos) << message;
    EXPECT_NE(message.find("error_test.cpp"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace titan
