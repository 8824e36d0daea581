// Changes of a job that take memory off it, in the order of what they cost. Knows options, no bytes.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

/// A job with some settings changed.
struct MemoryTrial {
  JobConfig config;
  std::vector<std::string> words;
  int64_t times_ranks = 1;  // so many times the processes

  template <class T>
  MemoryTrial& set(const char* key, T& field, const T& value, const std::string& shown) {
    if (field != value) words.push_back(fmt::format("{} = {}", key, shown));
    field = value;
    return *this;
  }
  MemoryTrial& set(const char* key, int64_t& field, int64_t value) {
    return set(key, field, value, std::to_string(value));
  }
};

using MemoryChange = std::function<void(MemoryTrial&)>;
/// One of several sizes of a setting: the first that fits counts.
using MemoryLadder = std::vector<MemoryChange>;

/// Of training. What costs least comes first: nothing but the loss's speed, then recomputing what is cheap, smaller
/// batches, recomputing all, narrower numbers, waiting for the host (where that is `other_memory`), more machines,
/// other data; and several of them.
std::vector<MemoryLadder> training_ladders(const JobConfig& config, bool other_memory);
/// Of validation: smaller batches, then shorter sequences.
std::vector<MemoryLadder> validation_ladders(const JobConfig& config);
/// Both of them: batches of one sequence, shorter and shorter; the last is the least there is.
MemoryLadder smallest_validations(const JobConfig& config);

}  // namespace titan
