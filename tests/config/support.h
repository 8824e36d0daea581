// What the tests of config share: loading a text, and reading what was said about it.
// A text is loaded as "job.toml", so that expected places read job.toml:line:column.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/checkout.h"
#include "support/config_text.h"

namespace titan {

inline LoadedConfig load(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return load_config_text(Schema(), text, "job.toml", overrides);
}

inline LoadedConfig load_words(const std::vector<std::string>& arguments) { return load_config(Schema(), arguments); }

/// Problems as the user sees them, one per line.
inline std::string said(const LoadedConfig& loaded) { return format_problems(loaded.problems); }

inline std::string notes_of(const LoadedConfig& loaded) {
  std::string text;
  for (const auto& notes : {loaded.renamed, loaded.notes}) {
    for (const std::string& note : notes) text += note + "\n";
  }
  return text;
}

inline std::string said_about(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return said(load(text, overrides));
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// A folder for the files of one test, removed at its end; several checkouts may run their tests at the same time.
class ScratchTest : public testing::Test {
 protected:
  ScratchTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-config-XXXXXX").string();
    folder_ = std::filesystem::canonical(::mkdtemp(pattern.data()));
  }
  ~ScratchTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

inline std::filesystem::path source_folder() { return checkout(); }

/// Every config this project ships, in a stable order.
inline std::vector<std::filesystem::path> shipped_configs() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() / "configs")) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace titan
