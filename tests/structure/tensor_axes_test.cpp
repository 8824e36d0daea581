// Every tensor that a header declares says its axes: a member in its comment, a parameter of a public function in the
// comment of the function or of the header. "[tokens, width]" are axes; "any shape", "scalar" and the like say that
// there are none to name.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "sources.h"

namespace titan {
namespace {

struct Declaration {
  std::string code;      // on one line, without comments
  std::string comments;  // above it and behind it
  bool is_private = false;
};

/// The declarations of a header that .clang-format has laid out: each begins on a line of its own.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) read_line(line);
  }

  std::vector<Declaration> declarations;
  std::string comments;  // all of the header

 private:
  enum class Scope { names, open, closed, body };  // of a namespace; public and private part of a class; of a function

  void read_line(const std::string& line) {
    const size_t at = line.find("//");
    if (at != std::string::npos) comments += line.substr(at + 2) + " ";
    const size_t first = line.find_first_not_of(' ');
    if (first == std::string::npos) return forget();
    if (line[first] == '#') return;
    if (at != std::string::npos) here_.comments += line.substr(at + 2) + " ";
    if (first == at) return;
    here_.code += (here_.code.empty() ? "" : " ") + line.substr(first, at == std::string::npos ? at : at - first);
    while (here_.code.back() == ' ') here_.code.pop_back();
    finish_line();
  }

  /// Leaves the code so far, unless the declaration goes on in the next line.
  void finish_line() {
    const std::string& code = here_.code;
    const long open = count('{') - count('}');
    if (!scopes_.empty() && scopes_.back() == Scope::body) {
      body_depth_ += open;
      if (body_depth_ == 0) scopes_.pop_back();
    } else if (code == "public:" || code == "protected:" || code == "private:") {
      scopes_.back() = code == "public:" ? Scope::open : Scope::closed;
    } else if (code[0] == '}') {
      scopes_.pop_back();
    } else if (count('(') != count(')') || (open == 0 && code.back() != ';' && code.back() != '}')) {
      return;
    } else if (open == 0) {
      add();
    } else if (code.back() != '{') {
      return;
    } else {
      enter();
    }
    here_ = {};
  }

  void enter() {
    static const std::regex type(R"((template <.*> )?(class|struct|union) [^(]*)");
    if (here_.code.starts_with("namespace")) return scopes_.push_back(Scope::names);
    std::smatch found;
    if (std::regex_match(here_.code, found, type)) {
      return scopes_.push_back(found[2] == "class" ? Scope::closed : Scope::open);
    }
    add();
    scopes_.push_back(Scope::body);
    body_depth_ = count('{') - count('}');
  }

  void add() {
    here_.is_private = std::find(scopes_.begin(), scopes_.end(), Scope::closed) != scopes_.end();
    declarations.push_back(here_);
  }

  void forget() {
    if (here_.code.empty()) here_ = {};
  }
  long count(char c) const { return std::count(here_.code.begin(), here_.code.end(), c); }

  Declaration here_;
  std::vector<Scope> scopes_;
  long body_depth_ = 0;
};

/// `code` with the arguments of templates replaced, so that commas and parentheses between them do not count.
std::string without_arguments(std::string code) {
  int depth = 0;
  for (char& c : code) {
    if (c == '>') --depth;
    const bool inside = depth > 0;
    if (c == '<') ++depth;
    if (inside) c = '_';
  }
  return code;
}

/// The names that a part of `code` declares, separated by commas: those with a tensor in their type, or all of them.
std::vector<std::string> names_in(const std::string& code, bool only_tensors) {
  static const std::regex tensor(R"(at::Tensor\b)"), last_word(R"((\w+)\W*$)");
  const std::string masked = without_arguments(code);
  std::vector<std::string> names;
  int depth = 0;
  for (size_t begin = 0, end = 0; end <= code.size(); ++end) {
    if (end < code.size() && (masked[end] == '(' || masked[end] == '{')) ++depth;
    if (end < code.size() && (masked[end] == ')' || masked[end] == '}')) --depth;
    if (end < code.size() && (masked[end] != ',' || depth > 0)) continue;
    const std::string one = code.substr(begin, end - begin);
    const std::string named = one.substr(0, std::min(one.find(" = "), one.find('{')));
    std::smatch found;
    if ((!only_tensors || std::regex_search(one, tensor)) && std::regex_search(named, found, last_word)) {
      names.push_back(found[1]);
    }
    begin = end + 1;
  }
  return names;
}

/// The parameters of a function, from its opening parenthesis on.
std::string parameters_of(const std::string& code, size_t open) {
  int depth = 0;
  for (size_t at = open; at < code.size(); ++at) {
    if (code[at] == '(') ++depth;
    if (code[at] == ')' && --depth == 0) return code.substr(open + 1, at - open - 1);
  }
  return {};
}

const std::string kAxes = R"((\[[^\])]+\]|\bshape|\bscalar|\bone number\b|0-dimensional))";

bool says_axes(const std::string& comment) {
  static const std::regex axes("(^|[^\\w\\]])" + kAxes);  // tensors[i] is an index
  return std::regex_search(comment, axes);
}

bool says_axes_of(const std::string& name, const std::string& comments) {
  return std::regex_search(comments, std::regex("\\b" + name + "\\b[^.;]{0,60}?" + kAxes));
}

/// The tensors that `header` declares, and `missing`, those without axes.
struct TensorNames {
  std::vector<std::string> all, missing;
};
TensorNames tensors_of(const std::string& header) {
  static const std::regex tensor(R"(at::Tensor\b)"), alias(R"(^using (\w+) = .*)");
  const HeaderReader reader(header);
  TensorNames names;
  for (const Declaration& declared : reader.declarations) {
    const std::string& code = declared.code;
    if (!std::regex_search(code, tensor)) continue;
    const std::string masked = without_arguments(code);
    const size_t open = masked.find('('), initial = std::min(masked.find(" = "), masked.find('{'));
    const bool is_function = open < initial;
    if (is_function && (declared.is_private || code.find(" override") != std::string::npos)) continue;
    std::smatch found;
    const std::vector<std::string> here = is_function ? names_in(parameters_of(code, open), true)
                                          : std::regex_match(code, found, alias) ? std::vector<std::string>{found[1]}
                                                                                 : names_in(code, false);
    const bool by_comment = says_axes(declared.comments) && (!is_function || here.size() == 1);
    for (const std::string& name : here) {
      names.all.push_back(name);
      if (!by_comment && !says_axes_of(name, reader.comments)) names.missing.push_back(name + " in: " + code);
    }
  }
  return names;
}

TEST(TensorAxes, AreSaidOfEveryMemberAndEveryPublicParameter) {
  size_t tensors = 0;
  for (const SourceFile& file : all_sources()) {
    if (!file.shown.ends_with(".h")) continue;
    const TensorNames names = tensors_of(file.text);
    tensors += names.all.size();
    for (const std::string& missing : names.missing) {
      ADD_FAILURE() << file.shown << ": the axes are not said ([tokens, width], or \"any shape\") of " << missing;
    }
  }
  EXPECT_GE(tensors, 300u);
}

using Names = std::vector<std::string>;

TEST(TensorAxes, MayBeInTheCommentOfADeclarationOrOfItsHeader) {
  EXPECT_EQ(tensors_of("struct A {\n  at::Tensor one;  // [rows]\n  /// A scalar.\n  at::Tensor two;\n};\n").missing,
            Names());
  EXPECT_EQ(tensors_of("/// x [N, D] and y (any shape).\nvoid f(const at::Tensor& x,\n       at::Tensor y);\n").missing,
            Names());
  EXPECT_EQ(tensors_of("// Everywhere x is [N, D].\n\nvoid f(at::Tensor x);\nvoid g(int a, at::Tensor x);\n").missing,
            Names());
  EXPECT_EQ(tensors_of("class A {\n  void f(at::Tensor x);\n  at::Tensor y;  // [N]\n};\n").missing, Names())
      << "a private function is not held against the rule";
}

TEST(TensorAxes, AreMissedWhereNothingSaysThem) {
  EXPECT_EQ(tensors_of("struct A {\n  at::Tensor one;  // fp32\n};\n").missing, Names{"one in: at::Tensor one;"});
  EXPECT_EQ(tensors_of("class A {\n  std::vector<at::Tensor> one_, two_;  // see outputs[i]\n};\n").missing.size(), 2u);
  EXPECT_EQ(tensors_of("/// x [N, D].\nvoid f(at::Tensor x, std::span<const at::Tensor> more = {});\n").missing.size(),
            1u);
  EXPECT_EQ(tensors_of("/// Returns [N].\nat::Tensor f(at::Tensor x, at::Tensor y) { return x + y; }\n").missing.size(),
            2u);
  EXPECT_EQ(tensors_of("struct A {\n  std::function<at::Tensor(int a, int b)> read;\n};\n").missing.size(), 1u);
  EXPECT_EQ(tensors_of("using Tensors = std::vector<at::Tensor>;\n").missing.size(), 1u);
}

}  // namespace
}  // namespace titan
