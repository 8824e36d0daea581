// What the tests of job, train and app share: a folder of their own, a job small enough for a step to take
// milliseconds, and the lines it leaves.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/checkout.h"
#include "support/config_text.h"
#include "titan/base/text.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"

namespace titan {

/// A folder of one test, removed at its end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-train-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

/// Command-line words of a small job that writes to `folder`; later words win.
inline std::vector<std::string> small_job_words(const TestFolder& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{
      "--job.dump_folder=" + folder / "out",
      "--model.tokenizer_path=" + (checkout() / "configs/tokenizers/stories.model").string(),
      "--model.override.dim=24",
      "--model.override.n_layers=2",
      "--model.override.n_heads=2",
      "--training.dataset=text",
      "--training.dataset_path=" + (checkout() / "configs/corpora/stories.jsonl").string(),
      "--validation.dataset=text",
      "--validation.dataset_path=" + (checkout() / "configs/corpora/stories_validation.jsonl").string(),
      "--training.local_batch_size=2",
      "--training.seq_len=32",
      "--training.steps=3",
      "--training.threads=1",
      "--training.device=cpu",
      "--training.mixed_precision_param=float32",
      "--lr_scheduler.warmup_steps=0",
      "--metrics.log_freq=1",
      "--debug.seed=1",
  };
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A config from TOML text and command-line words; a problem in it fails the test.
inline JobConfig job_config(const std::vector<std::string>& words, const std::string& toml = "") {
  const std::vector<ConfigCheck> checks{check_contradictions, check_model};
  const LoadedConfig loaded = load_config_text(Schema(), toml, "job.toml", words, checks);
  EXPECT_EQ(format_problems(loaded.problems), "");
  return loaded.config;
}

inline JobConfig small_job(const TestFolder& folder, const std::vector<std::string>& more = {},
                           const std::string& toml = "") {
  return job_config(small_job_words(folder, more), toml);
}

/// metrics.jsonl of a small job, all lines or those that hold `key`.
inline std::vector<nlohmann::json> metrics_of(const TestFolder& folder, const std::string& key = "step") {
  std::vector<nlohmann::json> lines;
  std::ifstream file(folder / "out/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    if (nlohmann::json parsed = nlohmann::json::parse(line); parsed.contains(key)) lines.push_back(std::move(parsed));
  }
  return lines;
}

template <class T>
std::vector<T> column(const std::vector<nlohmann::json>& lines, const std::string& key) {
  std::vector<T> values;
  for (const nlohmann::json& line : lines) values.push_back(line.at(key).get<T>());
  return values;
}

inline std::vector<double> losses(const TestFolder& folder) {
  return column<double>(metrics_of(folder, "loss"), "loss");
}

}  // namespace titan
