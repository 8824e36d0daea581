#include "mutants.h"

#include <gtest/gtest.h>

#include "support.h"
#include "titan/base/filesystem.h"
#include "titan/config/dump.h"

namespace titan {
namespace {

constexpr uint64_t kMutantsPerConfig = 150;

/// A problem of a file has a place in it, a sentence and a remedy.
void expect_clear_problems(const LoadedConfig& loaded, const std::string& edit) {
  for (const Problem& problem : loaded.problems) {
    EXPECT_EQ(problem.where.kind, Place::Kind::file) << format_problem(problem) << " after " << edit;
    EXPECT_GT(problem.where.line, 0) << format_problem(problem) << " after " << edit;
    EXPECT_FALSE(problem.what.empty() || problem.remedy.empty()) << format_problem(problem) << " after " << edit;
  }
}

TEST(Mutants, a_damaged_config_is_refused_with_places_or_means_exactly_what_it_shows) {
  Schema schema;
  int refused = 0;
  int tried = 0;
  for (const std::filesystem::path& file : shipped_configs()) {
    std::string original = read_file(file);
    for (uint64_t k = 0; k < kMutantsPerConfig; ++k) {
      Mutant damaged = mutant(original, k);
      LoadedConfig loaded = load_config_text(schema, damaged.text, "m.toml");
      ++tried;
      refused += loaded.problems.empty() ? 0 : 1;
      expect_clear_problems(loaded, damaged.edit);
      if (!loaded.problems.empty()) continue;
      std::string shown = dump_toml(schema, loaded.config);
      LoadedConfig again = load_config_text(schema, shown, "shown.toml");
      EXPECT_EQ(said(again), "") << file << ": " << damaged.edit;
      EXPECT_EQ(diff_configs(schema, {loaded.config}, {again.config}), "") << file << ": " << damaged.edit;
    }
  }
  EXPECT_GT(tried, 3000);
  EXPECT_GT(refused, tried / 2);
}

TEST(Mutants, a_mistyped_key_is_never_accepted_and_nearly_always_understood) {
  Schema schema;
  int tried = 0;
  int right = 0;
  for (const std::filesystem::path& file : shipped_configs()) {
    std::string original = read_file(file);
    for (uint64_t k = 0; k < kMutantsPerConfig; ++k) {
      Mutant damaged = mistyped_key(original, k);
      bool still_a_key = schema.find(damaged.typed_key) != nullptr || schema.find_alias(damaged.typed_key) != nullptr;
      if (still_a_key) continue;
      LoadedConfig loaded = load_config_text(schema, damaged.text, "m.toml");
      ASSERT_FALSE(loaded.problems.empty()) << damaged.edit;
      ++tried;
      std::string expected = "did you mean " + schema.display_name(damaged.right_key) + "?";
      right += contains(said(loaded), expected) ? 1 : 0;
    }
  }
  EXPECT_GT(tried, 3000);
  EXPECT_GE(right, tried * 95 / 100) << right << " of " << tried;
}

}  // namespace
}  // namespace titan
