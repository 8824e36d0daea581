#include "titan/distributed/peer_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "titan/base/error.h"

namespace titan {
namespace {

/// Expects that opening `address` reports a failure of the process that made it.
void expect_failure_of_owner(const std::string& address, pid_t owner) {
  try {
    SharedSegment::open(address);
    FAIL() << "it was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer_failure);
    EXPECT_NE(std::string(error.what()).find(fmt::format("process {}", owner)), std::string::npos) << error.what();
  }
}

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
  expect_failure_of_owner(std::string(text.data(), static_cast<size_t>(length)), child);
}

TEST(SharedSegment, ThatOfAFailingProcessWhoseDescriptorsAreOtherFilesIsAFailureOfThatRank) {
  auto mine = SharedSegment::create(64);
  const std::string address = mine->address();
  mine.reset();
  expect_failure_of_owner(address, ::getpid());  // closed
  for (int64_t bytes : {4096, 64}) {             // another file with the same descriptor: of another size, of the same
    const auto next = SharedSegment::create(bytes);
    ASSERT_EQ(next->address().substr(0, next->address().find(':', address.find(':') + 1)),
              address.substr(0, address.find(':', address.find(':') + 1)));
    expect_failure_of_owner(address, ::getpid());
  }
}

}  // namespace
}  // namespace titan
