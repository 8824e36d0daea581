#include "include_rule.h"

#include <gtest/gtest.h>

#include "sources.h"
#include "titan/base/text.h"

namespace titan {
namespace {

TEST(IncludeRule, EveryPartIncludesOnlyItselfAndThePartsBelow) {
  const std::vector<SourceFile> files = all_sources();
  ASSERT_GT(files.size(), 50u) << "the sources were not found";
  std::vector<std::string> violations;
  for (const SourceFile& file : files) {
    for (std::string& violation : include_violations(file.part, file.shown, file.text)) {
      violations.push_back(std::move(violation));
    }
  }
  EXPECT_TRUE(violations.empty()) << join(violations, "\n");
}

TEST(IncludeRule, APartMayIncludeItselfAndWhatIsBelow) {
  EXPECT_TRUE(include_violations("ops", "a.cpp",
                                 "#include \"titan/ops/linear.h\"\n#include \"titan/base/error.h\"\n"
                                 "#include <vector>\n#include <ATen/ATen.h>\n#include \"private.h\"\n")
                  .empty());
}

TEST(IncludeRule, AnIncludeOfAHigherPartIsFoundWithFileAndLine) {
  const auto found = include_violations("ops", "src/ops/a.cpp", "// x\n  #  include \"titan/model/unit.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "src/ops/a.cpp:2: ops may not include model (titan/model/unit.h)");
  EXPECT_EQ(include_violations("train", "a", "#include <titan/app/commands.h>").size(), 1u);
}

TEST(IncludeRule, ATensorInAPartWithoutTensorsIsFound) {
  EXPECT_EQ(include_violations("text", "a", "#include <ATen/core/Tensor.h>").size(), 1u);
  EXPECT_EQ(include_violations("kernels", "a", "#include <torch/torch.h>").size(), 1u);
  EXPECT_TRUE(include_violations("ops", "a", "#include <c10/util/Exception.h>").empty());
}

TEST(IncludeRule, TheCommandLineReaderIsKnownToConfigAndAppOnly) {
  EXPECT_EQ(include_violations("train", "a", "#include <CLI/CLI.hpp>").size(), 1u);
  EXPECT_TRUE(include_violations("config", "a", "#include <CLI/CLI.hpp>").empty());
}

TEST(IncludeRule, AnUnknownPartAndAPathOutOfTheFolderAreFound) {
  EXPECT_EQ(include_violations("helpers", "a", "").size(), 1u);
  EXPECT_EQ(include_violations("train", "a", "#include \"titan/helpers/x.h\"").size(), 1u);
  EXPECT_EQ(include_violations("train", "a", "#include \"../ops/attention_kernels.h\"").size(), 1u);
}

TEST(IncludeRule, TextThatOnlyMentionsAnIncludeIsNoInclude) {
  EXPECT_TRUE(
      include_violations("base", "a", "// see #include \"titan/app/commands.h\"\nstd::string s = \"include\";\n")
          .empty());
}

}  // namespace
}  // namespace titan
