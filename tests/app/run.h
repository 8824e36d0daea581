// Runs the program as a function and catches what a shell would see.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "titan/app/program.h"

namespace titan {

struct Outcome {
  int code = 0;
  std::string output;  // standard output
  std::string errors;  // standard error
};

/// `act` is any function that returns an exit code.
template <class Act>
Outcome outcome_of(const Act& act) {
  Outcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.code = act();
  outcome.output = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

inline Outcome run(const std::vector<std::string>& words) {
  return outcome_of([&] { return run_program(words); });
}

inline ::testing::AssertionResult holds(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

}  // namespace titan
