// Every public function that takes tensors is called with wrong ones in tests/<part>/wrong_tensors_test.cpp.
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

/// Functions of a part that have no row, and why.
using WithoutRow = std::map<std::string, std::string>;

const std::map<std::string, WithoutRow> kWithoutRow{
    {"distributed", {{"total_elements", "counts elements of any tensors"}}},
    {"ops",
     {{"find", "a tensor without an entry has no amax"},
      {"add", "counts bytes of any tensor"},
      {"note_saved", "counts bytes of any tensor"},
      {"take", "reads the device alone"},
      {"current_stream", "reads the device alone"},
      {"fit", "answers whether kernels take the tensors"},
      {"rows_fit", "answers whether kernels take the tensors"},
      {"strided_rows", "answers whether the rows are strided"},
      {"summary_of", "describes any tensor"},
      {"LossScale", "keeps the scale that `multiply` checks"},
      {"same_kind", "answers for any tensors"},
      {"same_form", "answers for any tensors"},
      {"is_number", "answers for any tensor"},
      {"wants_gradient", "reads a flag of any tensor"},
      {"connect", "LibTorch checks the variables of its graph"},
      {"values", "a cast of the pointer; its callers check the dtype"},
      {"results", "a cast of the pointer; its callers check the dtype"},
      {"own", "narrow checks its bounds"},
      {"set_weight", "the weight store makes the views; a check in this header would be compiled everywhere"},
      {"prepare", "the input that ParallelLinear::forward has checked"},
      {"prepare_gradients", "gradients of outputs that ParallelLinear::forward has made"},
      {"received", "rows that `message` has sent"}}},
    {"model",
     {{"apply", "projections that ParallelLinear::forward has made; the norms and biases of a variant check them"}}},
    {"parallel",
     {{"sum_loss", "does nothing; StepRunner's is called by the executor, which has checked the loss"},
      {"AsyncCopy", "keeps the tensors that copy_async has checked"},
      {"offload", "takes any tensors, undefined ones among them"},
      {"rows_of", "counts the tokens of a batch that the executor has checked"},
      {"put", "hand_off, transfer or the next unit check what they take out"},
      {"hand_off", "check_hidden, of what a unit handed on"},
      {"transfer", "check_hidden, of what a unit handed on"},
      {"forward", "the executor checks the batch before and the results after; units check what they get"},
      {"record", "takes a function"},
      {"unowned", "views any tensor"}}},
    {"optimize",
     {{"control_step", "hands its loss to control_from"},
      {"look_at", "reads what check_control has checked; a check in this header would be compiled everywhere"},
      {"adjacent", "answers for any tensors"},
      {"joined", "takes any tensors; exact_squares checks what it returns"},
      {"merged", "as_strided checks its bounds"}}},
    {"checkpoint",
     {{"index_of", "reads descriptions alone"},
      {"plan_save", "reads descriptions alone"},
      {"write_for_torchtitan", "writes tables of any form; TensorBytes checks what is written"}}},
    {"train", {{"infer", "hands the batch to Executor::infer"}}},
};

/// Names of the public functions that `text`, a header, declares with a tensor, or a struct of tensors, among their
/// parameters.
std::set<std::string> tensor_functions(const std::string& text) {
  static const std::regex comment("//[^\n]*");
  static const std::regex private_part("\n (private|protected):[^]*?\n\\};");
  static const std::regex empty_default(R"( = \{[^{}]*\})");
  static const std::regex declared(
      R"([\s&*](\w+)\s*\(([^;{}()]*(at::Tensor|\bMessage|HiddenStates|BatchContext|StepControl|NamedTensors|LoadTarget|StateTensor)\b[^;{}]*)\)[^;{}()]*[;{])");
  std::string code = std::regex_replace(text, comment, "");
  code = std::regex_replace(code, private_part, "\n};");
  code = std::regex_replace(code, empty_default, "");
  std::set<std::string> names;
  for (std::sregex_iterator at(code.begin(), code.end(), declared), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

class TensorFunctions : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorFunctions, AreCalledWithWrongTensors) {
  const std::string& part = GetParam();
  const std::string shown = "tests/" + part + "/wrong_tensors_test.cpp";
  std::ifstream file(checkout() / shown);
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  const WithoutRow& without = kWithoutRow.at(part);
  std::set<std::string> found;
  for (const SourceFile& header : all_sources()) {
    if (!header.shown.starts_with("include/titan/" + part + "/")) continue;
    for (const std::string& name : tensor_functions(header.text)) {
      found.insert(name);
      const bool has_row = std::regex_search(table, std::regex("\\{\"(\\w+::)?" + name + "\","));
      EXPECT_NE(has_row, without.contains(name))
          << header.shown << ": " << name << " needs a row in " << shown << ", or a reason here";
    }
  }
  EXPECT_GE(found.size(), 3u);
  for (const auto& [name, reason] : without) EXPECT_TRUE(found.contains(name)) << name << " is not declared";
}

INSTANTIATE_TEST_SUITE_P(Parts, TensorFunctions,
                         ::testing::Values("distributed", "ops", "model", "parallel", "optimize", "checkpoint",
                                           "train"),
                         [](const auto& info) { return info.param; });

TEST(TensorFunctions, AreFoundInDeclarationsOfSeveralLines) {
  EXPECT_EQ(tensor_functions("at::Tensor one(const at::Tensor& x,\n   int y) const;\n// at::Tensor no(at::Tensor x);\n"
                             "void two(std::vector<at::Tensor> x) { f(x); }\nint three(int x);\n"),
            (std::set<std::string>{"one", "two"}));
}

TEST(TensorFunctions, AreThoseThatOthersCanCall) {
  EXPECT_EQ(tensor_functions("class A {\n public:\n  void one(HiddenStates x, int y = {});\n private:\n"
                             "  void two(at::Tensor x);\n};\nvoid three(const BatchContext& batch);\n"),
            (std::set<std::string>{"one", "three"}));
}

}  // namespace
}  // namespace titan
