// Every function of titan/ops that takes tensors is called with wrong ones in tests/ops/wrong_tensors_test.cpp.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "sources.h"
#include "support/checkout.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Functions that have no row, and why.
const std::map<std::string, std::string> kWithoutRow{
    {"find", "a tensor without an entry has no amax"},
    {"add", "counts bytes of any tensor"},
    {"note_saved", "counts bytes of any tensor"},
    {"take", "reads the device alone"},
    {"current_stream", "reads the device alone"},
    {"fit", "answers whether kernels take the tensors"},
    {"rows_fit", "answers whether kernels take the tensors"},
    {"takes", "answers whether kernels take the tensor"},
    {"strided_rows", "answers whether the rows are strided"},
    {"wants_gradient", "reads a flag of any tensor"},
    {"connect", "LibTorch checks the variables of its graph"},
    {"values", "a cast of the pointer; its callers check the dtype"},
    {"results", "a cast of the pointer; its callers check the dtype"},
    {"own", "narrow checks its bounds"},
    {"set_weight", "the weight store makes the views; a check in this header would be compiled everywhere"},
    {"record", "private; the results of the operation that calls Recorder::once"},
    {"placeholder", "takes sizes and options"},
    {"products", "private; ParallelLinear::forward has checked the input"},
    {"joined_products", "private; ParallelLinear::forward has checked the input"},
    {"prepare", "the input that ParallelLinear::forward has checked"},
    {"prepare_gradients", "gradients of outputs that ParallelLinear::forward has made"},
    {"received", "rows that `message` has sent"},
};

/// Names of the functions that `text`, a header, declares with a tensor among their parameters.
std::set<std::string> tensor_functions(const std::string& text) {
  static const std::regex comment("//[^\n]*");
  static const std::regex declared(R"([\s&*](\w+)\s*\(([^;{}()]*at::Tensor[^;{}]*)\)[^;{}()]*[;{])");
  const std::string code = std::regex_replace(text, comment, "");
  std::set<std::string> names;
  for (std::sregex_iterator at(code.begin(), code.end(), declared), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

TEST(TensorFunctions, OfOpsAreCalledWithWrongTensors) {
  std::ifstream file(checkout() / "tests/ops/wrong_tensors_test.cpp");
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  std::set<std::string> found;
  for (const SourceFile& header : all_sources()) {
    if (!header.shown.starts_with("include/titan/ops/")) continue;
    for (const std::string& name : tensor_functions(header.text)) {
      found.insert(name);
      const bool has_row = std::regex_search(table, std::regex("\\{\"(\\w+::)?" + name + "\","));
      EXPECT_NE(has_row, kWithoutRow.contains(name))
          << header.shown << ": " << name << " needs a row in tests/ops/wrong_tensors_test.cpp, or a reason here";
    }
  }
  EXPECT_GE(found.size(), 40u);
  for (const auto& [name, reason] : kWithoutRow) EXPECT_TRUE(found.contains(name)) << name << " is not declared";
}

TEST(TensorFunctions, AreFoundInDeclarationsOfSeveralLines) {
  EXPECT_EQ(tensor_functions("at::Tensor one(const at::Tensor& x,\n   int y) const;\n// at::Tensor no(at::Tensor x);\n"
                             "void two(std::vector<at::Tensor> x) { f(x); }\nint three(int x);\n"),
            (std::set<std::string>{"one", "two"}));
}

}  // namespace
}  // namespace titan
