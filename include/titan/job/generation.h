// What is asked of generation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "titan/config/problem.h"

namespace titan {

struct SamplingOptions {
  double temperature = 0;         // of the softmax; 0: greedy
  int64_t top_k = 0;              // only the k likeliest tokens; 0: all
  double top_p = 1;               // only the likeliest tokens up to this cumulative probability
  double repetition_penalty = 1;  // logits of seen tokens: divided by it if positive, else multiplied
  uint64_t seed = 0;
};

struct GenerationOptions {
  SamplingOptions sampling = {};
  int64_t max_new_tokens = 256;
  std::vector<int32_t> stop_ids = {};        // end a text and are not part of it
  std::vector<std::string> stop_texts = {};  // likewise, wherever they appear in the generated text
};

/// Problems of a job whose model generates text, beside those of all jobs.
std::vector<Problem> generation_problems(const JobConfig& config, const Origins& origins);

}  // namespace titan
