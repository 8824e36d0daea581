#include "titan/distributed/peer_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "titan/base/error.h"

namespace titan {
namespace {

TEST(SharedSegment, WhatOneWritesTheOtherReads) {
  const auto mine = SharedSegment::create(64);
  const auto theirs = SharedSegment::open(mine->address());
  mine->data()[63] = 'x';
  EXPECT_EQ(theirs->data()[63], 'x');
  EXPECT_EQ(theirs->data()[0], 0);
}

TEST(SharedSegment, ThatOfAProcessThatHasEndedIsAFailureOfThatRankAndNotOfThisOne) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string address = SharedSegment::create(64)->address();
    [[maybe_unused]] const ssize_t written = ::write(ends[1], address.data(), address.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::array<char, 256> text{};
  const ssize_t length = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_GT(length, 0);
  try {
    SharedSegment::open(std::string(text.data(), static_cast<size_t>(length)));
    FAIL() << "it was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure);
    EXPECT_NE(std::string(error.what()).find(fmt::format("process {}", child)), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace titan
